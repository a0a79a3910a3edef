//go:build !linux

package host

import "github.com/sharedtensor/sharedtensor/driver"

var errUnsupported = &driver.UnsupportedError{Feature: "shared host memory", Requires: "Linux with memfd_create and file sealing"}

// Device is the host's memory. This system cannot share memory, so Open fails.
type Device struct{ driver.Reclaim }

// Open returns an error that matches [errors.ErrUnsupported].
func Open(...Option) (*Device, error) { return nil, errUnsupported }

// Info describes the device by its type alone.
func (*Device) Info() driver.Info { return driver.Info{Type: driver.CPU, Name: "host memory"} }

// Alloc returns an error that matches [errors.ErrUnsupported].
func (*Device) Alloc(int64) (driver.Memory, error) { return nil, errUnsupported }

// Import returns an error that matches [errors.ErrUnsupported].
func (*Device) Import(driver.Handle, driver.ImportOptions) (driver.Memory, error) {
	return nil, errUnsupported
}

// Probe reports that memory cannot be shared on this system.
func (*Device) Probe() []driver.Support {
	return []driver.Support{{Kind: driver.Memfd, Err: errUnsupported}}
}

// Synchronize does nothing.
func (*Device) Synchronize() error { return nil }

// MemoryLimit reports no limit.
func (*Device) MemoryLimit() (bytes int64, why string) { return 0, "" }

// Features reports that memory cannot be shared on this system.
func (*Device) Features() []Feature { return Features() }

// Features reports that memory cannot be shared on this system.
func Features() []Feature { return []Feature{{Name: "memfd", Err: errUnsupported}} }

// Close does nothing.
func (*Device) Close() error { return nil }
