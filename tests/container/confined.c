/* SPDX-License-Identifier: MIT */
/*
 * confined COMMAND [ARG...]: run a command under a seccomp filter that refuses with EPERM what
 * container engines refuse by default: io_uring, and what would reach into other processes or the
 * kernel. Docker's default profile allows ptrace and process_vm_* on kernels since 4.8; others do
 * not, so they are refused here, too.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define THIS_ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define THIS_ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "which AUDIT_ARCH_ is this?"
#endif

static const unsigned refused[] = {
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_ptrace,
    SYS_kcmp,
    SYS_pidfd_getfd,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_bpf,
    SYS_mount,
    SYS_umount2,
    SYS_unshare,
    SYS_setns,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_open_by_handle_at,
    SYS_name_to_handle_at,
    SYS_move_pages,
    SYS_set_mempolicy,
    SYS_mbind,
    SYS_get_mempolicy,
    SYS_syslog,
    SYS_quotactl,
    SYS_reboot,
    SYS_swapon,
};
enum { REFUSED = sizeof refused / sizeof *refused, HEAD = 4 };

static int confine(void)
{
    struct sock_filter code[HEAD + REFUSED + 2] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCHITECTURE, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    for (int i = 0; i < REFUSED; i++)
        code[HEAD + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused[i],
                                                      (unsigned char)(REFUSED - i), 0);
    code[HEAD + REFUSED] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[HEAD + REFUSED + 1] =
        (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    struct sock_fprog filter = {HEAD + REFUSED + 2, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        return -errno;
    return syscall(SYS_io_uring_setup, 0, NULL) == -1 && errno == EPERM ? 0 : -EPROTO;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: confined COMMAND [ARG...]\n");
        return 2;
    }
    int err = confine();
    if (err) {
        fprintf(stderr, "confined: no seccomp filter here: %s\n", strerror(-err));
        return 77;
    }
    execvp(argv[1], argv + 1);
    fprintf(stderr, "confined: cannot run %s: %s\n", argv[1], strerror(errno));
    return 127;
}
