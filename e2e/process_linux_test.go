package e2e

import "syscall"

// dieWithParent makes the kernel kill the child when the test binary dies, for instance of its time-out.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
