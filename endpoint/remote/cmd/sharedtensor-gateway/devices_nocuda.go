//go:build nocuda

package main

import "github.com/sharedtensor/sharedtensor/driver"

// openCUDA finds no GPU in this build.
func openCUDA() []driver.Device { return nil }
