package gateway

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/edge"
)

// networks is a list of networks, in which an address is a network of one host.
type networks []netip.Prefix

// parseNetworks parses addresses such as 10.0.0.7 and networks such as 10.0.0.0/8.
func parseNetworks(list []string) (networks, error) {
	all := make(networks, 0, len(list))
	for _, text := range list {
		text = strings.TrimSpace(text)
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			addr, addrErr := netip.ParseAddr(text)
			if addrErr != nil || addr.Zone() != "" {
				return nil, fmt.Errorf("%q is neither an address nor a network such as 10.0.0.0/8", text)
			}
			prefix = netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen())
		}
		all = append(all, prefix.Masked())
	}
	return all, nil
}

// contains reports whether one of the networks has the address.
func (n networks) contains(addr netip.Addr) bool {
	return slices.ContainsFunc(n, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// forwardedHeader is the header in which proxies append the address of their peer.
const forwardedHeader = "X-Forwarded-For"

// forwardedFrom returns the address of the client for which proxies have forwarded a request, or nil if its connection is not from
// a proxy of --forwarded-for or names no client. It uses the last address of the header that is not a proxy: the client may have
// sent the addresses before it.
func (g *Gateway) forwardedFrom(r *http.Request) net.Addr {
	if len(g.forwarders) == 0 {
		return nil
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !g.forwarders.contains(hostOf(peer.Addr())) {
		return nil
	}
	var client netip.Addr
	list := strings.Split(strings.Join(r.Header.Values(forwardedHeader), ","), ",")
	for _, text := range slices.Backward(list) {
		addr, ok := parseForwarded(strings.TrimSpace(text))
		if !ok {
			break
		}
		if client = addr; !g.forwarders.contains(addr) {
			break
		}
	}
	if !client.IsValid() {
		return nil
	}
	return &edge.ProxiedAddr{Addr: &net.IPAddr{IP: client.AsSlice()}, Proxy: net.TCPAddrFromAddrPort(peer)}
}

// parseForwarded parses an element of the header: an address, optionally with a port.
func parseForwarded(text string) (netip.Addr, bool) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return hostOf(at.Addr()), true
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return hostOf(addr), err == nil
}

// hostOf returns an address without its zone, and an IPv4 address in IPv6 as IPv4.
func hostOf(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }
