package edge

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// ProxiedAddr is the remote address of a connection that a proxy has made for a client. The user of the client is unknown.
type ProxiedAddr struct {
	// Addr is the address of the client, or that of the proxy for a connection of the proxy itself.
	net.Addr
	// Proxy is the address of the proxy.
	Proxy net.Addr
}

// errProxyHeader reports a header that is not one of the PROXY protocol.
var errProxyHeader = errors.New("the header of the PROXY protocol is malformed")

// Limits of headers: a line of version 1, and the addresses and extensions of version 2.
const (
	maxProxyLine = 107
	maxProxyBody = 4 << 10
)

// proxySignature begins a header of version 2.
const proxySignature = "\r\n\r\n\x00\r\nQUIT\n"

// acceptProxy reads the header with which a proxy begins a connection, and sets the remote address.
func (c *Conn) acceptProxy() error {
	_ = c.Conn.SetReadDeadline(time.Now().Add(min(headerPatience, c.stall))) // fails for a closed connection, as the read does
	client, err := readProxyHeader(c.Conn)
	if err != nil {
		return err
	}
	remote := &ProxiedAddr{c.Conn.RemoteAddr(), c.Conn.RemoteAddr()}
	if client.IsValid() {
		remote.Addr = net.TCPAddrFromAddrPort(client)
	}
	c.remote = remote
	return c.Conn.SetReadDeadline(time.Time{})
}

// readProxyHeader reads a header of version 1 or 2 and no byte more. It returns the address of the client, or the zero value for
// a connection of the proxy itself or of a client without an address.
func readProxyHeader(r io.Reader) (client netip.AddrPort, err error) {
	var head [len(proxySignature)]byte // not longer than the shortest line of version 1
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return client, err
	}
	switch {
	case string(head[:]) == proxySignature:
		return readProxyBody(r)
	case bytes.HasPrefix(head[:], []byte("PROXY ")):
		return readProxyLine(r, head[:])
	}
	return client, errProxyHeader
}

// readProxyLine reads the rest of a header of version 1.
func readProxyLine(r io.Reader, line []byte) (client netip.AddrPort, err error) {
	if bytes.ContainsAny(line, "\r\n") {
		return client, errProxyHeader
	}
	var next [1]byte
	for next[0] != '\n' {
		if len(line) == maxProxyLine {
			return client, errProxyHeader
		}
		if _, err = io.ReadFull(r, next[:]); err != nil {
			return client, err
		}
		line = append(line, next[0])
	}
	text, ended := strings.CutSuffix(string(line), "\r\n")
	fields := strings.Split(text, " ")
	switch {
	case !ended || strings.ContainsAny(text, "\r\n"):
		return client, errProxyHeader
	case fields[1] == "UNKNOWN":
		return client, nil
	case len(fields) != 6 || fields[1] != "TCP4" && fields[1] != "TCP6":
		return client, errProxyHeader
	}
	client, err = proxyAddress(fields[1], fields[2], fields[4])
	if err == nil {
		_, err = proxyAddress(fields[1], fields[3], fields[5])
	}
	return client, err
}

// proxyAddress parses an address of version 1.
func proxyAddress(family, host, port string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddr(host)
	number, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || addr.Is4() != (family == "TCP4") || addr.Zone() != "" || strconv.FormatUint(number, 10) != port {
		return netip.AddrPort{}, errProxyHeader
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(number)), nil
}

// readProxyBody reads the rest of a header of version 2. Extensions are ignored.
func readProxyBody(r io.Reader) (client netip.AddrPort, err error) {
	var head [4]byte // version and command, family and transport, length
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return client, err
	}
	size := int(binary.BigEndian.Uint16(head[2:]))
	if size > maxProxyBody {
		return client, fmt.Errorf("%w: it has %d bytes, at most %d are possible", errProxyHeader, size, maxProxyBody)
	}
	body := make([]byte, size)
	if _, err = io.ReadFull(r, body); err != nil {
		return client, err
	}
	const local, proxied, unspecified, tcp4, tcp6, unix = 0x20, 0x21, 0x00, 0x11, 0x21, 0x31
	switch {
	case head[0] == local, head[0] == proxied && head[1] == unspecified, head[0] == proxied && head[1] == unix && size >= 216:
		return client, nil
	case head[0] == proxied && head[1] == tcp4 && size >= 12:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(body[:4])), binary.BigEndian.Uint16(body[8:])), nil
	case head[0] == proxied && head[1] == tcp6 && size >= 36:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(body[:16])).Unmap(), binary.BigEndian.Uint16(body[32:])), nil
	}
	return client, errProxyHeader
}
