"""Writes the host's report itself, on every socket that it finds, and in no form that is fit."""

import os
import stat

FORMS = {
    "deep": '{"status":"ok","claim":' + "[" * 2_000_000,
    "deep objects": '{"status":"ok","claim":' + '{"a":' * 500_000,
    "numbers": '{"status":"ok","claim":[{"a":NaN,"b":-Infinity,"c":1e999}]}',
    "digits": '{"status":"ok","claim":[{"a":' + "9" * 1_000_000 + "}]}",
    "surrogates": '{"status":"ok","claim":[{"\\ud800":"\\udfff\\u0000"}]}',
    "keys": '{"status":"ok","claim":[{' + ",".join(f'"{n}":0' for n in range(200_000)) + "}]}",
    "blame": '{"status":"launch_failed","what":"the host\'s disk is full","code":2001}',
    "no JSON": "\x00\xff" * 1000,
}


def agent_main(problem):
    data = FORMS[problem["form"]].encode("latin-1")
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if fd > 2 and stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.set_blocking(fd, True)
                left = memoryview(data)
                while left:
                    left = left[os.write(fd, left) :]
        except OSError:
            pass
    os._exit(0)
