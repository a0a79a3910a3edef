// Package mirrorgate has a gateway mirror models, and give them on to other mirrors, as a component.
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
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
)

// pauseBetween is the time between two attempts of a mirror that ended.
const pauseBetween = 5 * time.Second

// Component follows models of other hosts and stores, and tells the page how far they are. Where the gateway has NATS,
// the mirrors of one cluster take from each other.
type Component struct {
	// Mirrors are SOURCE or NAME=SOURCE, with the sources of mirror.Options.
	Mirrors []string
	// TokenFile has the token that sources ask for in its first line, and peers too.
	TokenFile string
	// CA is a PEM file of the authority that signed the certificates of sources and peers; empty for those of the system.
	CA string
	// URL is where peers reach this gateway; http://ADDRESS of a loopback listener where it is empty.
	URL string
	// Fanout is how many mirrors take from one at the same time.
	Fanout int
	// MaxModel bounds the memory of each model.
	MaxModel gateway.ByteSize
	// Range is the bytes of a range.
	Range gateway.ByteSize
	// Lease is mirror.Options.Lease.
	Lease time.Duration

	env     *gateway.Env
	peers   *mirror.Peers
	stop    context.CancelFunc
	running sync.WaitGroup
	rows    []*row
}

// New returns the component without mirrors.
func New() *Component {
	return &Component{Fanout: 1, MaxModel: mirror.DefaultMaxBytes, Range: mirror.DefaultRangeBytes, Lease: mirror.DefaultLease}
}

// Name implements gateway.Component.
func (c *Component) Name() string { return "mirrors" }

// Flags implements gateway.Configurer.
func (c *Component) Flags(set *pflag.FlagSet) {
	set.StringSliceVar(&c.Mirrors, "mirror", c.Mirrors, "models to follow, as SOURCE or NAME=SOURCE: see the command mirror")
	set.StringVar(&c.TokenFile, "mirror-token-file", c.TokenFile, "file whose first line is the token that sources and other mirrors ask for")
	set.StringVar(&c.CA, "mirror-ca", c.CA, "PEM file of the certificate authority of sources and other mirrors")
	set.StringVar(&c.URL, "mirror-url", c.URL, "https://HOST:PORT where other mirrors on the same NATS reach this gateway; they are given nothing without it, but on loopback")
	set.IntVar(&c.Fanout, "mirror-fanout", c.Fanout, "mirrors that take from one at the same time")
	set.Var(&c.MaxModel, "mirror-max-model", "largest model that is mirrored")
	set.Var(&c.Range, "mirror-range", "bytes of a range")
	set.DurationVar(&c.Lease, "mirror-lease", c.Lease, "how long a source keeps a version for a mirror that it does not hear of")
}

// CheckConfig implements gateway.Configurer.
func (c *Component) CheckConfig() error {
	var errs []error
	names := map[string]bool{}
	for _, text := range c.Mirrors {
		name, source := split(text)
		if _, err := mirror.DefaultName(source); err != nil {
			errs = append(errs, fmt.Errorf("--mirror %s: %w", text, err))
		} else if key := name + "=" + source; names[key] {
			errs = append(errs, fmt.Errorf("--mirror %s: it is there twice", text))
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

// split divides NAME=SOURCE. The name is empty where there is none.
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
		return errors.New("--mirror publishes at the owner, and the gateway is read-only")
	}
	options := mirror.Options{MaxBytes: int64(c.MaxModel), RangeBytes: int64(c.Range), Lease: c.Lease, Device: env.Arrivals}
	if options.Token, err = c.token(); err != nil {
		return err
	}
	if options.TLS, err = c.tls(); err != nil {
		return err
	}
	if env.NATS != nil && len(c.Mirrors) > 0 {
		c.peers, err = mirror.NewPeers(env.NATS, mirror.PeersOptions{URL: c.url(), Token: options.Token, TLS: options.TLS, Fanout: c.Fanout})
		if err != nil {
			return err
		}
		if env.HTTP != nil {
			env.HTTP.Handle(mirror.PeersPattern, c.peers)
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
			r.name, _ = mirror.DefaultName(one.Source) // the configuration was checked
		}
		c.rows = append(c.rows, r)
		one.Events = r.note
		c.running.Go(func() { c.follow(ctx, one, r) })
	}
	return nil
}

// url is where peers reach this gateway; empty where nobody said so.
func (c *Component) url() string {
	host, _, err := net.SplitHostPort(c.env.Advertise.HTTP)
	if ip := net.ParseIP(host); c.URL == "" && err == nil && ip != nil && ip.IsLoopback() {
		return "http://" + c.env.Advertise.HTTP
	}
	return c.URL
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

// follow follows one model until ctx ends, whatever happens.
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
			c.env.Logger.Log(ctx, slog.LevelWarn, "a mirror is tried again", "source", options.Source, "error", err)
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
	if err = m.Follow(ctx); errors.Is(err, errors.ErrUnsupported) { // the source names one version
		if _, err = m.Pull(ctx); err == nil {
			<-ctx.Done() // other mirrors may want it
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

// Status implements gateway.StatusReporter: one row for each mirror.
func (c *Component) Status(context.Context) (any, error) {
	out := make([]Row, len(c.rows))
	for i, r := range c.rows {
		out[i] = r.get()
	}
	return out, nil
}
