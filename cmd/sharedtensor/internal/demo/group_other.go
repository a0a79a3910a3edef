//go:build !unix

package demo

import "syscall"

// ownGroup returns nil: this system has no process groups.
func ownGroup() *syscall.SysProcAttr { return nil }
