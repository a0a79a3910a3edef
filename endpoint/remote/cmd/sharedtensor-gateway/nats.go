package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/local"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// natsFlags selects the NATS servers of a command.
type natsFlags struct {
	url, credentials, tokenFile string
	tls                         natslink.TLSFiles
	plaintext                   bool // a token or password may be sent without TLS
}

// add adds the flags to a command and its subcommands. Their defaults are read from the environment.
func (f *natsFlags) add(c *cobra.Command) {
	servers := os.Getenv("NATS_URL")
	if servers == "" {
		servers = "nats://127.0.0.1:4222"
	}
	set := c.PersistentFlags()
	set.StringVar(&f.url, "nats", servers, "URLs of the NATS servers, separated by commas (or NATS_URL)")
	set.StringVar(&f.credentials, "nats-credentials", os.Getenv("NATS_CREDS"), "credentials file for the servers (or NATS_CREDS)")
	set.StringVar(&f.tls.CA, "nats-ca", "", "authorities of the servers in PEM, instead of those of the system")
	set.StringVar(&f.tls.Cert, "nats-cert", "", "client certificate in PEM")
	set.StringVar(&f.tls.Key, "nats-key", "", "key of --nats-cert in PEM")
	set.StringVar(&f.tokenFile, "token-file", "", "file whose first line is the token of the servers")
	set.BoolVar(&f.plaintext, "insecure-token", false, "send the token or password without TLS also to another host, where the network can read it")
}

// checkToken returns an error if a token or password would go to another host without TLS.
func (f *natsFlags) checkToken() error {
	if f.plaintext || f.tls.CA != "" || f.tls.Cert != "" {
		return nil
	}
	for server := range strings.SplitSeq(f.url, ",") {
		if server = strings.TrimSpace(server); !strings.Contains(server, "://") {
			server = "nats://" + server
		}
		u, err := url.Parse(server)
		if err != nil || u.User == nil && f.tokenFile == "" {
			continue // the connection reports wrong addresses
		}
		if u.Scheme != "tls" && u.Scheme != "wss" && !local.Loopback(u.Hostname()) {
			return usageError{fmt.Errorf("the token would go to %s without encryption: use tls://%s or --nats-ca, or --insecure-token to send it anyway", u.Host, u.Host)}
		}
	}
	return nil
}

// connect connects within a few seconds, or returns an error with a remedy. The caller closes the connection.
func (f *natsFlags) connect() (*nats.Conn, error) {
	if err := f.checkToken(); err != nil {
		return nil, err
	}
	opts := []nats.Option{nats.Name("sharedtensor-gateway bin")}
	if f.credentials != "" {
		opts = append(opts, nats.UserCredentials(f.credentials))
	}
	if f.tokenFile != "" {
		text, err := os.ReadFile(f.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		token, _, _ := strings.Cut(string(text), "\n")
		opts = append(opts, nats.Token(strings.TrimSpace(token)))
	}
	if err := f.tls.Check(); err != nil {
		return nil, usageError{fmt.Errorf("--nats-cert: %w", err)}
	}
	conn, err := natslink.Connect(f.url, append(opts, f.tls.Options()...)...)
	if errors.Is(err, nats.ErrNoServers) {
		return nil, fmt.Errorf("no NATS server answers at %s: start `sharedtensor-gateway serve`, or name one with --nats", f.url)
	}
	return conn, err
}
