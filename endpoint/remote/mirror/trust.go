package mirror

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/local"
	"github.com/sharedtensor/sharedtensor/internal/userns"
)

// trusted are the hosts that a mirror fetches from and sends its token to.
type trusted struct {
	names    []string // in lower case; a leading dot matches all subdomains
	networks []netip.Prefix
}

// parseTrusted parses names, *.DOMAIN, addresses and networks.
func parseTrusted(list []string) (t trusted, err error) {
	for _, one := range list {
		text := strings.ToLower(strings.Trim(one, "[]"))
		if addr, err := netip.ParseAddr(text); err == nil {
			t.networks = append(t.networks, netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()))
			continue
		}
		if network, err := netip.ParsePrefix(text); err == nil {
			t.networks = append(t.networks, network.Masked())
			continue
		}
		name, below := strings.CutPrefix(text, "*.")
		if name == "" || strings.ContainsAny(name, "*/:@ ") {
			return t, fmt.Errorf("%q is not a host name, *.DOMAIN, an address or a network such as 10.0.0.0/8", one)
		}
		if below {
			name = "." + name
		}
		t.names = append(t.names, name)
	}
	return t, nil
}

// none reports whether the list is empty.
func (t trusted) none() bool { return len(t.names) == 0 && len(t.networks) == 0 }

// has reports whether a host is on the list.
func (t trusted) has(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if addr, err := netip.ParseAddr(host); err == nil {
		for _, network := range t.networks {
			if network.Contains(addr.Unmap()) {
				return true
			}
		}
		return false
	}
	for _, name := range t.names {
		if host == name || name[0] == '.' && strings.HasSuffix(host, name) {
			return true
		}
	}
	return false
}

// hostID identifies this process's loopback interface: the boot and the network namespace.
var hostID = sync.OnceValue(func() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	network, err2 := os.Readlink("/proc/self/ns/net")
	if err != nil || err2 != nil {
		name, _ := os.Hostname() // fallback without /proc
		boot, network = []byte(name), ""
	}
	sum := sha256.Sum256(append(boot, network...))
	return hex.EncodeToString(sum[:8])
})

// usable reports whether this mirror may fetch from another one. A NATS client provides the address, so the token is
// sent only to trusted hosts over https, and to mirrors of this host.
func (p *Peers) usable(e peerEntry) bool {
	u, err := url.Parse(e.URL)
	if err != nil {
		return false
	}
	here := local.Reached(u.Hostname())
	if here && e.Host != hostID() {
		return false // the loopback address belongs to another host
	}
	if p.options.Token == "" {
		return here || p.trusted.none() || p.trusted.has(u.Hostname())
	}
	return here || u.Scheme == "https" && p.trusted.has(u.Hostname())
}

// checkUsers makes the client refuse loopback addresses with a listener of another user, unless they are trusted.
// Otherwise that user would receive the token.
func (p *Peers) checkUsers(client *http.Client) {
	transport, ok := client.Transport.(*http.Transport)
	if !ok || p.options.Token == "" {
		return
	}
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		host, _, _ := net.SplitHostPort(address)
		at, ok := conn.RemoteAddr().(*net.TCPAddr)
		if !ok || !local.Addr(at) || p.trusted.has(host) {
			return conn, nil
		}
		uid, err := admission.ListenerUser(at)
		if err == nil && !userns.Self(uid) {
			err = fmt.Errorf("uid %d listens there: add %s to the trusted mirrors to send it the token", uid, host)
		}
		if err != nil {
			_ = conn.Close() // best effort: it was not used
			return nil, fmt.Errorf("the mirror at %s: %w", address, err)
		}
		return conn, nil
	}
}

// ownAddress returns the address to announce. It is empty if it is a loopback address and other hosts would receive it.
func ownAddress(address string, conn *nats.Conn) (string, error) {
	if address == "" {
		return "", nil
	}
	if err := checkPeerURL(address); err != nil {
		return "", err
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil && addr.IsUnspecified() {
		return "", fmt.Errorf("%q is no address of this host: give the one at which other mirrors reach it", address)
	}
	if local.Reached(u.Hostname()) && !onThisHost(conn) {
		return "", nil
	}
	return address, nil
}

// onThisHost reports whether all servers of a NATS connection are on this host.
func onThisHost(conn *nats.Conn) bool {
	if conn.Opts.InProcessServer != nil {
		return true
	}
	servers := conn.Opts.Servers
	if conn.Opts.Url != "" {
		servers = append([]string{conn.Opts.Url}, servers...)
	}
	for _, list := range servers {
		for one := range strings.SplitSeq(list, ",") {
			one = strings.TrimSpace(one)
			if !strings.Contains(one, "://") {
				one = "nats://" + one
			}
			if u, err := url.Parse(one); err != nil || !local.Reached(u.Hostname()) {
				return false
			}
		}
	}
	return true
}
