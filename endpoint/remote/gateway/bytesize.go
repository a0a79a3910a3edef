package gateway

import "github.com/sharedtensor/sharedtensor/endpoint/remote/internal/bytesize"

// ByteSize is a number of bytes, written as 64MiB, 1GB or 4096. It implements pflag.Value.
type ByteSize = bytesize.Size
