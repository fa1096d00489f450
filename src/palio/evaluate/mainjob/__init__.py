"""The main job: race, record, judge, corpus, train, evaluate, report, stage by stage."""
