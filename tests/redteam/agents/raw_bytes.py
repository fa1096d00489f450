"""NUL, half characters, overlong forms and bytes that are no UTF-8, on both streams."""

import os


def agent_main(problem):
    for _ in range(200):
        for fd in (1, 2):
            os.write(fd, b"a\x00b\xff\xfe\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80\xe2\x82")
    return []
