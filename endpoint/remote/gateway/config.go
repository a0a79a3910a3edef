package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/local"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// Ports of a gateway of rank 0. The ports of rank n are n higher.
const (
	httpPort = 2537
	grpcPort = 50051
	natsPort = 4222
)

// Off disables a listener, the owner or NATS.
const Off = "off"

// Embedded selects the NATS server inside the gateway.
const Embedded = "embedded"

// Config is the configuration of a gateway. DefaultConfig returns the defaults, Flags binds it to flags, and
// ApplySettings reads the environment and a file.
type Config struct {
	// Owner is the path of the owner's socket. Empty means the default socket. Off means that the gateway serves only
	// the embedding program's functions.
	Owner string
	// HTTP, GRPC and NATSListen are addresses as host:port or unix:PATH, or Off. NATSListen must be host:port.
	HTTP, GRPC, NATSListen string
	// NATS is Embedded, Off, or the comma-separated URLs of a cluster.
	NATS string
	// NATSLeaf contains the comma-separated URLs of leaf-node listeners of the cluster of NATS. With them, clients of the
	// cluster connect to NATSListen, where the policy applies. The gateway is then a leaf node without streams.
	NATSLeaf string
	// NATSDomain is the JetStream domain of the cluster of NATSLeaf.
	NATSDomain string
	// NATSCredentials is the credentials file for the NATS cluster.
	NATSCredentials string
	// NATSTLS has the files for TLS connections to the cluster.
	NATSTLS natslink.TLSFiles
	// Admin is the address of a separate listener for metrics, health and pprof, or Off. With it, the HTTP listener does not
	// serve them.
	Admin string
	// ProxyProtocol lists the addresses and networks of proxies whose connections to HTTP, gRPC and Admin begin with a header
	// of the PROXY protocol.
	ProxyProtocol []string
	// ForwardedFor lists the addresses and networks of proxies whose X-Forwarded-For header names the client of an HTTP
	// request.
	ForwardedFor []string
	// Debug is a loopback address for pprof, or Off.
	Debug string
	// Store is the directory for persistent data: streams of the embedded NATS server and objects of components.
	Store string
	// MaxStore limits the streams of the embedded NATS server. A stream with a limit counts with its limit. 0 means three
	// quarters of the disk.
	MaxStore ByteSize
	// NATSSync is the time between syncs of the embedded NATS server's streams to the disk, which is what a power failure
	// may lose. Always, which is 0, syncs each message before it is acknowledged.
	NATSSync SyncInterval
	// TLSCert and TLSKey are PEM files. They are reloaded when they change.
	TLSCert, TLSKey string
	// ClientCA is a PEM file with the authorities of accepted client certificates.
	ClientCA string
	// TokenFile is a file with one token per line: TOKEN [NAME [read-only]]. Or it is a directory with a file for each
	// name, which contains its tokens, one per line. It is reloaded when it changes.
	TokenFile string
	// Policy is a YAML file with the rights of tokens and certificates. It is reloaded when it changes. Without it, they
	// have all rights.
	Policy string
	// Audit is a file to which a line of JSON is appended for each change. Empty means the log.
	Audit string
	// RequireAudit refuses a change if its record cannot be written to Audit. Changes through the embedded NATS server are
	// recorded after they are made, and are not refused.
	RequireAudit bool
	// AccessLog is a file to which a line of JSON is appended for each request. Empty means the log, and Off none.
	AccessLog string
	// AllowHosts lists host names, in addition to loopback names, that browsers may use to address a gateway without
	// identities.
	AllowHosts []string
	// Insecure permits listeners beyond loopback without TLS or identity.
	Insecure bool
	// ReadOnly refuses changes of the owner and the store.
	ReadOnly bool
	// MaxConnections limits the connections of each listener.
	MaxConnections int
	// MaxRequest limits the size of a request body that is held in memory, such as a JSON-RPC request.
	MaxRequest ByteSize
	// MaxInFlight limits the bytes of all requests that are held until they are processed.
	MaxInFlight ByteSize
	// Stall is the maximum time for which a peer may neither send nor receive a byte of a transfer.
	Stall time.Duration
	// MinRate is the minimum rate of senders, in bytes per second. 0 means none.
	MinRate ByteSize
	// LameDuck is how long the gateway keeps serving, reported as not ready, before its listeners close.
	LameDuck time.Duration
	// Drain is how long requests in flight may continue when the gateway stops.
	Drain time.Duration
	// LogLevel is debug, info, warn or error; LogFormat is text or json.
	LogLevel, LogFormat string
}

// DefaultConfig returns the defaults for the rank that a job launcher set in the environment (RANK, otherwise
// LOCAL_RANK).
func DefaultConfig() Config {
	rank := rankOf(os.Getenv)
	at := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port+rank)) }
	return Config{
		HTTP: at(httpPort), GRPC: at(grpcPort), NATS: Embedded, NATSListen: at(natsPort), Admin: Off, Debug: Off, Store: defaultStore(os.Getenv, rank), NATSSync: SyncInterval(natslink.DefaultSyncInterval),
		MaxConnections: 8192, MaxRequest: 64 << 20, MaxInFlight: 1 << 30, Stall: 30 * time.Second, MinRate: 4 << 10, LameDuck: 2 * time.Second, Drain: 10 * time.Second, LogLevel: "info", LogFormat: "text",
	}
}

// rankOf returns the rank of this process in its job. It returns 0 if there is none, or if the resulting ports would be
// out of range.
func rankOf(getenv func(string) string) int {
	for _, name := range []string{"RANK", "LOCAL_RANK"} {
		if rank, err := strconv.Atoi(getenv(name)); err == nil && rank >= 0 && rank < 10000 {
			return rank
		}
	}
	return 0
}

// defaultStore returns the state directory that systemd set, otherwise the user's state directory.
func defaultStore(getenv func(string) string, rank int) string {
	suffix := ""
	if rank > 0 {
		suffix = "-" + strconv.Itoa(rank)
	}
	if dir := getenv("STATE_DIRECTORY"); dir != "" {
		dir, _, _ = strings.Cut(dir, ":")
		return dir + suffix
	}
	dir := getenv("XDG_STATE_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "sharedtensor-gateway"+suffix)
}

// Flags adds a flag for each setting to set. The current values of c are the defaults.
func (c *Config) Flags(set *pflag.FlagSet) {
	set.StringVar(&c.Owner, "owner", c.Owner, `socket of the owner; "off" for none (default: the socket that sharedtensor serve uses)`)
	set.StringVar(&c.HTTP, "http", c.HTTP, `address for HTTP (JSON-RPC, models, metrics, the page), or "off"`)
	set.StringVar(&c.GRPC, "grpc", c.GRPC, `address for gRPC, or "off"`)
	set.StringVar(&c.NATS, "nats", c.NATS, `"embedded", "off", or the URLs of a cluster: nats://host:4222,…`)
	set.StringVar(&c.NATSListen, "nats-listen", c.NATSListen, `address of the embedded NATS server, or with --nats-leaf of the leaf node, or "off"`)
	set.StringVar(&c.NATSLeaf, "nats-leaf", c.NATSLeaf, "leaf-node listeners of the cluster of --nats, for clients with the rights of the policy: nats-leaf://host:7422,…")
	set.StringVar(&c.NATSDomain, "nats-domain", c.NATSDomain, "JetStream domain of the cluster of --nats-leaf")
	set.StringVar(&c.NATSCredentials, "nats-credentials", c.NATSCredentials, "credentials file for the cluster of --nats")
	set.StringVar(&c.NATSTLS.CA, "nats-ca", c.NATSTLS.CA, "authorities of the cluster of --nats in PEM, instead of those of the system")
	set.StringVar(&c.NATSTLS.Cert, "nats-cert", c.NATSTLS.Cert, "client certificate for the cluster of --nats in PEM")
	set.StringVar(&c.NATSTLS.Key, "nats-key", c.NATSTLS.Key, "key of --nats-cert in PEM")
	set.StringVar(&c.Admin, "admin", c.Admin, `address for metrics, health and pprof, which HTTP then does not serve, or "off"`)
	set.StringSliceVar(&c.ProxyProtocol, "proxy-protocol", c.ProxyProtocol, "addresses or networks of proxies whose connections (HTTP, gRPC) begin with a header of the PROXY protocol, version 1 or 2")
	set.StringSliceVar(&c.ForwardedFor, "forwarded-for", c.ForwardedFor, "addresses or networks of proxies whose X-Forwarded-For header names the client of an HTTP request")
	set.StringVar(&c.Debug, "debug", c.Debug, `loopback address for pprof, or "off"`)
	set.StringVar(&c.Store, "store", c.Store, "directory for persistent data")
	set.Var(&c.MaxStore, "max-store", "maximum bytes of the embedded NATS server's streams; 0 for three quarters of the disk")
	set.Var(&c.NATSSync, "nats-sync", `time between syncs of the embedded NATS server's streams to the disk, which a power failure may lose, or "always": before each acknowledgement`)
	set.StringVar(&c.TLSCert, "tls-cert", c.TLSCert, "certificate chain in PEM; reloaded when it changes")
	set.StringVar(&c.TLSKey, "tls-key", c.TLSKey, "key of --tls-cert in PEM")
	set.StringVar(&c.ClientCA, "client-ca", c.ClientCA, "authorities in PEM whose client certificates are accepted")
	set.StringVar(&c.TokenFile, "token-file", c.TokenFile, "file of tokens, one per line: TOKEN [NAME [read-only]], or a directory of files NAME; reloaded when it changes")
	set.StringVar(&c.Policy, "policy", c.Policy, "file of the rights of tokens and certificates, in YAML; reloaded when it changes (default: all rights)")
	set.StringVar(&c.Audit, "audit", c.Audit, "append a line of JSON for each change to this file (default: the log)")
	set.BoolVar(&c.RequireAudit, "require-audit", c.RequireAudit, "refuse changes whose record cannot be written to --audit")
	set.StringVar(&c.AccessLog, "access-log", c.AccessLog, `append a line of JSON for each request to this file, or "off" (default: the log, at level info)`)
	set.StringSliceVar(&c.AllowHosts, "allow-hosts", c.AllowHosts, "host names, in addition to loopback names, that requests without identity may use")
	set.BoolVar(&c.Insecure, "insecure", c.Insecure, "listen beyond loopback without TLS or identity")
	set.BoolVar(&c.ReadOnly, "read-only", c.ReadOnly, "refuse changes of the owner and the store")
	set.IntVar(&c.MaxConnections, "max-connections", c.MaxConnections, "maximum connections of each listener")
	set.Var(&c.MaxRequest, "max-request", "maximum size of a request held in memory")
	set.DurationVar(&c.Stall, "stall", c.Stall, "maximum time without progress of a transfer")
	set.Var(&c.MaxInFlight, "max-in-flight", "maximum bytes of unprocessed requests; half per identity, 1/32 for all read-only identities")
	set.Var(&c.MinRate, "min-rate", "minimum rate of a sender in bytes per second; 0 for none")
	set.DurationVar(&c.LameDuck, "lame-duck", c.LameDuck, "how long the gateway keeps serving, not ready, before its listeners close")
	set.DurationVar(&c.Drain, "drain", c.Drain, "how long requests in flight may continue when the gateway stops")
	set.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	set.StringVar(&c.LogFormat, "log-format", c.LogFormat, "text or json")
}

// Check returns all errors of the settings, by flag. It reads the files that the settings name and opens no listener.
func (c *Config) Check() error {
	var errs []error
	bad := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: %w", flag, fmt.Errorf(format, args...)))
	}
	for _, l := range c.listeners() {
		if err := checkAddress(l.address); err != nil {
			bad(l.flag, "%w", err)
		} else if err := c.checkExposed(l); err != nil {
			bad(l.flag, "%w", err)
		}
	}
	if exposed(c.Debug) {
		bad("debug", "pprof shows the memory of the program: %s must be a loopback address", c.Debug)
	}
	for flag, list := range map[string][]string{"proxy-protocol": c.ProxyProtocol, "forwarded-for": c.ForwardedFor} {
		if _, err := parseNetworks(list); err != nil {
			bad(flag, "%w", err)
		} else if len(list) > 0 && c.TokenFile == "" && c.ClientCA == "" && !c.Insecure {
			bad(flag, "the users of clients behind a proxy are unknown: set --token-file or --client-ca, or --insecure")
		}
	}
	if c.RequireAudit && c.Audit == "" {
		bad("require-audit", "there is no file to write: set --audit")
	}
	if err := c.checkNATS(); err != nil {
		bad("nats", "%w", err)
	}
	if err := c.NATSTLS.Check(); err != nil {
		bad("nats-cert", "%w", err)
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		bad("tls-cert", "a certificate and a key belong together: set --tls-cert and --tls-key")
	}
	if c.ClientCA != "" && c.TLSCert == "" {
		bad("client-ca", "client certificates need TLS: set --tls-cert and --tls-key")
	}
	if c.Policy != "" && c.TokenFile == "" && c.ClientCA == "" {
		bad("policy", "rights belong to tokens and certificates: set --token-file or --client-ca")
	}
	if c.MaxConnections < 1 {
		bad("max-connections", "%d: at least one connection", c.MaxConnections)
	}
	if c.MaxRequest < 1<<10 {
		bad("max-request", "%v: at least 1KiB", c.MaxRequest)
	}
	if c.MaxInFlight < 1<<20 {
		bad("max-in-flight", "%v: at least 1MiB", c.MaxInFlight)
	}
	if c.MaxStore < 0 {
		bad("max-store", "%v: it must not be negative", c.MaxStore)
	}
	if c.MinRate < 0 {
		bad("min-rate", "%v: it must not be negative", c.MinRate)
	}
	if c.Stall <= 0 {
		bad("stall", "%v: it has to be more than nothing", c.Stall)
	}
	if c.LameDuck < 0 {
		bad("lame-duck", "%v: it must not be negative", c.LameDuck)
	}
	if c.Drain < 0 {
		bad("drain", "%v: it must not be negative", c.Drain)
	}
	if _, err := newLogger(os.Stderr, c.LogLevel, c.LogFormat); err != nil {
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		_, err := newIdentities(c, nil)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// listener is one configured address.
type listener struct {
	flag, address string
}

// listeners returns the enabled listeners that other processes can reach.
func (c *Config) listeners() []listener {
	all := []listener{{"http", c.HTTP}, {"grpc", c.GRPC}, {"admin", c.Admin}}
	if c.NATS == Embedded || c.NATSLeaf != "" {
		all = append(all, listener{"nats-listen", c.NATSListen})
	}
	var on []listener
	for _, l := range all {
		if l.address != Off {
			on = append(on, l)
		}
	}
	return on
}

// checkExposed returns an error if other hosts could read or change data without identity or TLS.
func (c *Config) checkExposed(l listener) error {
	if c.Insecure || !exposed(l.address) {
		return nil
	}
	if c.TLSCert == "" {
		return fmt.Errorf("%s can be reached from other hosts: set --tls-cert and --tls-key, or --insecure", l.address)
	}
	if c.TokenFile == "" && c.ClientCA == "" {
		return fmt.Errorf("%s can be reached from other hosts: set --token-file or --client-ca, or --insecure", l.address)
	}
	return nil
}

func (c *Config) checkNATS() error {
	if c.NATSLeaf != "" {
		if c.NATS == Off || c.NATS == Embedded {
			return errors.New("--nats-leaf belongs to a cluster: set --nats nats://host:4222")
		}
		if err := c.leaf().Check(); err != nil {
			return fmt.Errorf("--nats-leaf: %w", err)
		}
	}
	switch c.NATS {
	case Off:
		return nil
	case Embedded:
		if c.Store == "" {
			return errors.New("the embedded server needs a directory: set --store, or --nats off")
		}
		return nil
	}
	for one := range strings.SplitSeq(c.NATS, ",") {
		u, err := url.Parse(strings.TrimSpace(one))
		if err != nil || u.Host == "" {
			return fmt.Errorf("%q is neither embedded, off nor a URL such as nats://host:4222", hideCredentials(c.NATS))
		}
	}
	if c.NATSCredentials != "" {
		if _, err := os.Stat(c.NATSCredentials); err != nil {
			return err
		}
	}
	return nil
}

// leaf returns the connection of the leaf node to the cluster.
func (c *Config) leaf() natslink.Leaf {
	return natslink.Leaf{URLs: c.NATSLeaf, Domain: c.NATSDomain, Credentials: c.NATSCredentials, TLS: c.NATSTLS}
}

// checkAddress checks the syntax of an address.
func checkAddress(address string) error {
	if path, isUnix := strings.CutPrefix(address, "unix:"); isUnix {
		if path == "" || len(path) > 107 {
			return fmt.Errorf("%q: a socket's path has 1 to 107 bytes", path)
		}
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not host:port: %w", address, err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q has no port from 0 to 65535", address)
	}
	return nil
}

// exposed reports whether other hosts could reach the address. A host name counts as reachable unless it is localhost,
// because its resolution may change.
func exposed(address string) bool {
	if address == Off || address == "" || strings.HasPrefix(address, "unix:") {
		return false
	}
	return !local.Bound(address)
}
