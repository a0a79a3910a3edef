// Package mirrorgate is the gateway component that mirrors models and serves them to other mirrors.
//
//	sharedtensor-gateway serve --nats nats://cluster:4222 --mirror llm=https://gpu7:2537/llm
package mirrorgate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/local"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
)

// pauseBetween is the pause before a mirror that ended is restarted.
const pauseBetween = 5 * time.Second

// Component follows models of other hosts and stores, and reports their progress on the gateway's page. If the gateway
// has NATS, the mirrors of one cluster fetch from each other.
type Component struct {
	// Mirrors contains SOURCE or NAME=SOURCE, with the sources of mirror.Options.
	Mirrors []string
	// TokenFile is a file with the token for sources and peers in its first line.
	TokenFile string
	// CA is a PEM file with the authority that signed the certificates of sources and peers; empty for the system's
	// authorities.
	CA string
	// URL is the address at which peers reach this gateway. If it is empty and only this host can reach NATS, it is the
	// address of a loopback listener.
	URL string
	// Trust is mirror.PeersOptions.Trusted.
	Trust []string
	// Fanout is the number of mirrors that fetch from this one at once.
	Fanout int
	// MaxModel limits the memory of each model.
	MaxModel gateway.ByteSize
	// Range is the size of a range in bytes.
	Range gateway.ByteSize
	// Lease is mirror.Options.Lease.
	Lease time.Duration

	env     *gateway.Env
	peers   *mirror.Peers
	stop    context.CancelFunc
	running sync.WaitGroup
	rows    []*row
}

// New returns a component without mirrors.
func New() *Component {
	return &Component{Fanout: 1, MaxModel: mirror.DefaultMaxBytes, Range: mirror.DefaultRangeBytes, Lease: mirror.DefaultLease}
}

// Name implements gateway.Component.
func (c *Component) Name() string { return "mirrors" }

// Flags implements gateway.Configurer.
func (c *Component) Flags(set *pflag.FlagSet) {
	set.StringSliceVar(&c.Mirrors, "mirror", c.Mirrors, "models to follow, as SOURCE or NAME=SOURCE: see the command mirror")
	set.StringVar(&c.TokenFile, "mirror-token-file", c.TokenFile, "file with the token for sources and other mirrors in its first line")
	set.StringVar(&c.CA, "mirror-ca", c.CA, "PEM file of the certificate authority of sources and other mirrors")
	set.StringVar(&c.URL, "mirror-url", c.URL, "https://HOST:PORT where other mirrors on the same NATS reach this gateway; without it, only mirrors on this host fetch from it")
	set.StringSliceVar(&c.Trust, "mirror-trust", c.Trust, "hosts to fetch from, and to send the token to over https: names, *.DOMAIN, addresses, networks")
	set.IntVar(&c.Fanout, "mirror-fanout", c.Fanout, "mirrors that fetch from one mirror at once")
	set.Var(&c.MaxModel, "mirror-max-model", "largest model to mirror")
	set.Var(&c.Range, "mirror-range", "bytes of a range")
	set.DurationVar(&c.Lease, "mirror-lease", c.Lease, "how long a source holds a version for a mirror that does not renew its lease")
}

// CheckConfig implements gateway.Configurer.
func (c *Component) CheckConfig() error {
	var errs []error
	names := map[string]bool{}
	for _, text := range c.Mirrors {
		name, source := split(text)
		if _, err := mirror.DefaultName(source); err != nil {
			errs = append(errs, fmt.Errorf("--mirror: %w", err)) // names the source without credentials
		} else if key := name + "=" + source; names[key] {
			errs = append(errs, fmt.Errorf("--mirror %s: listed twice", text))
		} else {
			names[key] = true
		}
	}
	if c.Fanout < 1 {
		errs = append(errs, fmt.Errorf("--mirror-fanout %d: it must be 1 or more", c.Fanout))
	}
	if c.Lease < time.Second {
		errs = append(errs, fmt.Errorf("--mirror-lease %v: it must be a second or more", c.Lease))
	}
	return errors.Join(errs...)
}

// split splits NAME=SOURCE. The name is empty if there is none.
func split(text string) (name, source string) {
	name, source, found := strings.Cut(text, "=")
	if !found || strings.Contains(name, ":") {
		return "", text
	}
	return name, source
}

// Register implements gateway.Component.
func (c *Component) Register(_ context.Context, env *gateway.Env) (err error) {
	c.env = env
	if env.ReadOnly && len(c.Mirrors) > 0 {
		return errors.New("--mirror publishes at the owner, but the gateway is read-only")
	}
	options := mirror.Options{MaxBytes: int64(c.MaxModel), RangeBytes: int64(c.Range), Lease: c.Lease, Device: env.Arrivals, Known: env.Digests}
	if options.Token, err = c.token(); err != nil {
		return err
	}
	if options.TLS, err = c.tls(); err != nil {
		return err
	}
	if env.NATS != nil && len(c.Mirrors) > 0 {
		c.peers, err = mirror.NewPeers(env.NATS, mirror.PeersOptions{URL: c.url(), Token: options.Token, TLS: options.TLS, Fanout: c.Fanout, Trusted: c.Trust})
		if err != nil {
			return err
		}
		if options.Token != "" && len(c.Trust) == 0 {
			env.Logger.Warn("mirrors of other hosts do not receive the token, so nothing is fetched from them: see --mirror-trust")
		}
		if env.HTTP != nil {
			env.HTTP.Handle(mirror.PeersPattern, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				// Models are named by their digests here, which are in manifests only.
				if err := env.Allow(r.Context(), access.Acquire, ""); err != nil {
					http.Error(w, err.Error(), admission.KindOf(err).HTTP)
					return
				}
				ctx, done := env.Wait(r.Context()) // on shutdown, peers that wait for bytes fetch them elsewhere
				defer done()
				c.peers.ServeHTTP(w, r.WithContext(ctx))
			}))
		}
		options.Peers = c.peers
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	for _, text := range c.Mirrors {
		one := options
		one.Name, one.Source = split(text)
		r := &row{source: one.Source, name: one.Name, state: "waiting for the owner"}
		if r.name == "" {
			r.name, _ = mirror.DefaultName(one.Source) // CheckConfig has validated it
		}
		c.rows = append(c.rows, r)
		one.Events = r.note
		c.running.Go(func() { c.follow(ctx, one, r) })
	}
	return nil
}

// url returns the address at which peers reach this gateway; empty if none is known. A loopback address is useful only
// on this host, so it is announced only if NATS is on this host.
func (c *Component) url() string {
	if c.URL != "" || !local.Bound(c.env.Advertise.HTTP) {
		return c.URL
	}
	if nats, err := url.Parse(c.env.Advertise.NATS); err != nil || nats.Host != "" && !local.Bound(nats.Host) {
		return ""
	}
	return "http://" + c.env.Advertise.HTTP
}

func (c *Component) token() (string, error) {
	if c.TokenFile == "" {
		return os.Getenv("SHAREDTENSOR_TOKEN"), nil
	}
	text, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return "", fmt.Errorf("--mirror-token-file: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	token, _, _ := strings.Cut(strings.TrimSpace(line), " ")
	return token, nil
}

func (c *Component) tls() (*tls.Config, error) {
	if c.CA == "" {
		return nil, nil
	}
	text, err := os.ReadFile(c.CA)
	if err != nil {
		return nil, fmt.Errorf("--mirror-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--mirror-ca: %s has no certificate in PEM", c.CA)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// follow follows one model until ctx ends, and restarts after errors.
func (c *Component) follow(ctx context.Context, options mirror.Options, r *row) {
	for ctx.Err() == nil {
		changed := c.env.Owner.Changed()
		client, err := c.env.Owner.Client()
		if err == nil {
			options.Owner = client
			err = run(ctx, options)
		}
		if err != nil && ctx.Err() == nil {
			r.fail(err)
			c.env.Logger.Log(ctx, slog.LevelWarn, "retrying a mirror", "source", options.Source, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(pauseBetween):
		}
	}
}

func run(ctx context.Context, options mirror.Options) (err error) {
	m, err := mirror.New(options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err = m.Follow(ctx); errors.Is(err, errors.ErrUnsupported) { // the source is one fixed version
		if _, err = m.Pull(ctx); err == nil {
			<-ctx.Done() // continue serving other mirrors
		}
	}
	return err
}

// Close implements gateway.Component.
func (c *Component) Close(context.Context) error {
	if c.stop != nil {
		c.stop()
	}
	c.running.Wait()
	return nil
}

// Status implements gateway.StatusReporter. It returns one row for each mirror.
func (c *Component) Status(context.Context) (any, error) {
	out := make([]Row, len(c.rows))
	for i, r := range c.rows {
		out[i] = r.get()
	}
	return out, nil
}
