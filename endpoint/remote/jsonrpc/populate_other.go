//go:build !linux

package jsonrpc

import "github.com/sharedtensor/sharedtensor/driver"

// populateAhead does nothing on this system.
func populateAhead(driver.Memory) (stop func()) { return func() {} }
