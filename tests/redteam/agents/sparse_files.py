"""Files that are long and hold nothing: by truncation, by seeking, by reservation."""

import os

TERABYTE = 1 << 40


def tried(make):
    fd = os.open("/tmp/sparse", os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    try:
        make(fd)
    except OSError:
        pass
    length = os.fstat(fd).st_size
    os.close(fd)
    return length


def agent_main(problem):
    return [
        {
            "truncate": tried(lambda fd: os.truncate(fd, TERABYTE)),
            "seek": tried(lambda fd: os.pwrite(fd, b"x", TERABYTE)),
            "fallocate": tried(lambda fd: os.posix_fallocate(fd, 0, TERABYTE)),
        }
    ]
