//go:build !unix

package demo

import "syscall"

// ownGroup has nothing to set here.
func ownGroup() *syscall.SysProcAttr { return nil }
