//go:build unix

package demo

import "syscall"

// ownGroup puts a process into a group of its own, so that an interrupt from the terminal reaches the director alone,
// which then ends the others in order.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
