//go:build unix

package demo

import "syscall"

// ownGroup starts a process in a new process group. An interrupt from the terminal then reaches only the director,
// which ends the other processes in order.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
