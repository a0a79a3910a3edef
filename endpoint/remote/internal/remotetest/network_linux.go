package remotetest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
)

var networks atomic.Int64

// Network connects hosts, which are network namespaces, to one switch. Each host has an address and a rate-limited
// link.
type Network struct {
	t      testing.TB
	prefix string
	hosts  int
}

// NewNetwork creates a switch without hosts. If the test has no permission to create namespaces or limit links, it is
// skipped, unless SHAREDTENSOR_REQUIRE names "netns".
func NewNetwork(t testing.TB) *Network {
	t.Helper()
	n := &Network{t: t, prefix: fmt.Sprintf("st%d-%d", os.Getpid(), networks.Add(1))}
	err := command("ip", "netns", "add", n.host(0))
	drivertest.Needs(t, "netns", err == nil, fmt.Sprintf("network namespaces, for hosts of their own: %v", err))
	t.Cleanup(func() {
		for i := range n.hosts + 1 {
			if err := command("ip", "netns", "del", n.host(i)); err != nil {
				t.Error(err)
			}
		}
	})
	err = n.in(0, "ip", "link", "add", "switch", "type", "bridge")
	drivertest.Needs(t, "netns", err == nil, fmt.Sprintf("a bridge between network namespaces: %v", err))
	n.must(n.in(0, "ip", "link", "set", "switch", "up"))
	return n
}

func (n *Network) host(i int) string { return fmt.Sprintf("%s-%d", n.prefix, i) }

// in runs a command on a host. 0 is the switch.
func (n *Network) in(host int, args ...string) error {
	return command("ip", append([]string{"netns", "exec", n.host(host)}, args...)...)
}

func (n *Network) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func command(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// AddHost adds a host whose link carries mbit Mbit/s in each direction. 0 means no limit. It returns the host's number,
// from 1.
func (n *Network) AddHost(mbit int) int {
	n.t.Helper()
	n.must(command("ip", "netns", "add", n.host(n.hosts+1)))
	n.hosts++
	host, port := n.hosts, fmt.Sprintf("port%d", n.hosts)
	n.must(n.in(host, "ip", "link", "set", "lo", "up"))
	n.must(n.in(0, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", n.host(host)))
	n.must(n.in(0, "ip", "link", "set", port, "master", "switch", "up"))
	n.must(n.in(host, "ip", "addr", "add", n.Address(host)+"/24", "dev", "eth0"))
	n.must(n.in(host, "ip", "link", "set", "eth0", "up"))
	if mbit > 0 {
		limit := []string{"root", "tbf", "rate", fmt.Sprintf("%dmbit", mbit), "burst", "256kb", "latency", "50ms"}
		err := n.in(host, append([]string{"tc", "qdisc", "add", "dev", "eth0"}, limit...)...)
		drivertest.Needs(n.t, "netns", err == nil, fmt.Sprintf("links that are limited: %v", err))
		n.must(n.in(0, append([]string{"tc", "qdisc", "add", "dev", port}, limit...)...))
	}
	return host
}

// Address returns the IP address of a host.
func (n *Network) Address(host int) string { return fmt.Sprintf("10.111.7.%d", host) }

// Outside returns the address at which hosts reach this process.
func (n *Network) Outside() string {
	n.t.Helper()
	const address = "10.111.7.254"
	name := fmt.Sprintf("st%d", os.Getpid())
	n.must(n.in(0, "ip", "link", "add", "outside", "type", "veth", "peer", "name", name, "netns", "1"))
	n.must(n.in(0, "ip", "link", "set", "outside", "master", "switch", "up"))
	n.must(command("ip", "addr", "add", address+"/24", "dev", name)) // removed with the switch
	n.must(command("ip", "link", "set", name, "up"))
	return address
}

// Block blocks traffic between two hosts.
func (n *Network) Block(a, b int) {
	n.t.Helper()
	n.must(n.in(a, "ip", "route", "add", "blackhole", n.Address(b)+"/32"))
	n.must(n.in(b, "ip", "route", "add", "blackhole", n.Address(a)+"/32"))
}

// StartGateway starts a gateway on a host and waits until it serves HTTP on port 2537 of the host's address, without
// authentication. It reaches the owner through its Unix socket.
func (n *Network) StartGateway(host int, owner string, args ...string) *Gateway {
	n.t.Helper()
	p, line := startIn(n.t, []string{"ip", "netns", "exec", n.host(host)}, "gateway", append([]string{
		"--owner", owner, "--http", n.Address(host) + ":2537", "--grpc", gateway.Off, "--nats", gateway.Off, "--nats-listen", gateway.Off,
		"--store", filepath.Join(n.t.TempDir(), "store"), "--insecure", "--log-level", "warn",
	}, args...)...)
	g := &Gateway{Process: p}
	if err := json.Unmarshal([]byte(line), &g.Addresses); err != nil {
		n.t.Fatalf("the gateway did not start; its log:\n%s", p.log)
	}
	return g
}

// URL returns the base URL of a host's gateway for the other hosts.
func (n *Network) URL(host int) string { return "http://" + n.Address(host) + ":2537" }
