"""The one door between an agent and the world or a model; it writes the record.

Paths below a run's base URL (the agent knows it as SANDBOX_PROXY_URL), or at the root of a run's
own listening socket:

=============================== ================================================================
GET search/TOOL?q=...           one tool call; the body of the answer is the bare result, warnings
                                stand in X-Palio-Warnings (JSON list), an error in X-Palio-Error
POST search/TOOL                the same; JSON arguments, X-Tool-Call-Id ties it to the model's call
                                and proves that the model made it (docs/broker.md)
POST inference/chat/completions one chat completion in OpenAI form, whole or streamed; also
                                POST v1/chat/completions
GET tools                       {tools, max_steps, system}: what the policy harness is told
GET status                      {left: {calls, inferences, tokens, bytes, seconds}, ...}
GET v1/models                   the run's model
=============================== ================================================================
"""
