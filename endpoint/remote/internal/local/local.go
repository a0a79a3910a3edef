// Package local recognizes addresses of this host.
package local

import (
	"net"
	"net/netip"
	"strings"
)

// Addr reports whether the peer with that address is on this host: on loopback or on a Unix socket.
func Addr(remote net.Addr) bool {
	if remote == nil || remote.Network() == "unix" {
		return remote != nil
	}
	at, err := netip.ParseAddrPort(remote.String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// Loopback reports whether a host is localhost or an address of the loopback interface.
func Loopback(host string) bool {
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// Reached reports whether a client that connects to the host reaches its own host. In addition to Loopback, this
// includes names below localhost and unspecified addresses.
func Reached(host string) bool {
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	return Loopback(name) || strings.HasSuffix(name, ".localhost") || net.ParseIP(strings.Trim(name, "[]")).IsUnspecified()
}

// Bound reports whether an address to listen at, HOST:PORT, is only reachable from this host.
func Bound(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && Loopback(host)
}
