// Package unixsock has the Unix socket of an owner: its path, its directory, its lock, and listening on it.
package unixsock

import "net"

// FileID names a file of this host while it exists.
type FileID struct{ device, inode uint64 }

// HandedOver is a socket that another process, such as systemd, has bound. It takes the listener.
func HandedOver(path string, l *net.UnixListener) *Socket { return &Socket{path: path, listener: l} }
