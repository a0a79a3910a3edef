//go:build nocuda

package main

import "github.com/sharedtensor/sharedtensor/driver"

// openCUDA returns nil because this build has no GPU support.
func openCUDA() []driver.Device { return nil }
