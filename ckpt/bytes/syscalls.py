"""The calls of the Linux kernel that reading never needs: their numbers on x86_64 and
on aarch64.

The numbers come from `arch/x86/entry/syscalls/syscall_64.tbl` and
`include/uapi/asm-generic/unistd.h` of Linux 6.18. They never change. aarch64 lacks the
calls of which the number is None.
"""

from __future__ import annotations

Numbers = dict[str, tuple[int | None, int | None]]
"""Name of a call -> its number on x86_64, and on aarch64."""

# `write` is not among them: an answer on stdout needs it.
FILES: Numbers = {
    "creat": (85, None),
    "truncate": (76, 45),
    "ftruncate": (77, 46),
    "fallocate": (285, 47),
    "open_by_handle_at": (304, 265),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
"""Calls that change files and folders. `open` and `openat` are judged by their
flags.
"""

# Behind another root, a path that was judged would be another file.
MOUNTS: Numbers = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "unshare": (272, 97),
    "setns": (308, 268),
}
"""Calls that change what a path means."""

# A file in memory has no path, and can be started by its descriptor.
PROGRAMS: Numbers = {
    "execve": (59, 221),
    "execveat": (322, 281),
    "vfork": (58, None),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}
"""Calls that start a program, or make a file without a name for one."""

# A message may name its receiver, so sending reaches out without `connect`.
NETWORK: Numbers = {
    "socketpair": (53, 199),
    "connect": (42, 203),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
}
"""Calls that reach other machines, or a service of this one. `socket` is judged by its
family.
"""

SERVING: Numbers = {
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
}
"""Calls of who serves others: reading a URL needs none."""

# `kill` and `tgkill` are not here: a process may send signals to itself, see JUDGED.
PROCESSES: Numbers = {
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgrcv": (70, 188),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
"""Calls that act on other processes, or on memory and queues that they share."""

SYSTEM: Numbers = {
    "io_uring_setup": (425, 425),  # its queues carry calls past any filter
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "add_key": (248, 217),
    "request_key": (249, 218),  # may start a program
    "keyctl": (250, 219),
    "fanotify_init": (300, 262),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setreuid": (113, 145),
    "setregid": (114, 143),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "setfsuid": (122, 151),
    "setfsgid": (123, 152),
    "setgroups": (116, 159),
    "capset": (126, 91),
    "personality": (135, 92),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
}
"""Calls that change the kernel, or the rights of this process."""

JUDGED: Numbers = {
    "open": (2, None),
    "openat": (257, 56),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "fork": (57, None),
    "clone": (56, 220),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "socket": (41, 198),
}
"""Calls that reading needs in some of their forms: their arguments decide."""

OPAQUE: Numbers = {"clone3": (435, 435), "openat2": (437, 437)}
"""Calls whose flags lie in memory, where no filter can look. libc goes on with the
older call where they are missing.
"""

UNKNOWN = 470
"""The first number of which this table knows nothing. No libc needs such a call:
kernels of today lack it.
"""
