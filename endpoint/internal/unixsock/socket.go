// Package unixsock manages the Unix socket of an owner: its path, directory, lock and listener.
package unixsock

import "net"

// FileID identifies a file of this host during its lifetime.
type FileID struct{ device, inode uint64 }

// HandedOver returns a socket that another process, such as systemd, has bound. It takes ownership of the listener.
func HandedOver(path string, l *net.UnixListener) *Socket { return &Socket{path: path, listener: l} }
