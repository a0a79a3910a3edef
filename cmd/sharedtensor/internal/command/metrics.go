package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/metrics"
)

// metricsFlags holds the flags of the command metrics.
type metricsFlags struct {
	owner  *cli.OwnerFlags
	listen string
}

func newMetricsCommand() *cobra.Command {
	var o metricsFlags
	c := &cobra.Command{
		Use:   "metrics [flags]",
		Short: "Print the owner's counters for Prometheus, or serve them",
		Long: `Print the owner's counters in the text format of Prometheus: requests, the cache, tasks, memory by device, and calls and
durations of each endpoint. With --listen, serve them over HTTP at /metrics until interrupted. Every scrape queries the owner.
Owners may stop and start; while there is none, sharedtensor_up is 0.

An address without a host is reachable only from this host. There is no password: every user who can connect can read.`,
		Example: `  sharedtensor metrics
  sharedtensor metrics > /var/lib/node_exporter/sharedtensor.prom
  sharedtensor metrics --listen :9464`,
		Args: cli.Exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.listen != "" {
				return o.serve(c)
			}
			text, err := o.scrape(c.Context())
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(text)
			return err
		},
	}
	o.owner = cli.AddOwnerFlags(c)
	c.Flags().StringVar(&o.listen, "listen", "", "serve over HTTP at this address, such as :9464")
	return c
}

// upMetric reports whether the owner answers.
const upMetric = "# HELP sharedtensor_up Whether the owner answers.\n# TYPE sharedtensor_up gauge\nsharedtensor_up "

// scrape requests the metrics from the owner once.
func (o *metricsFlags) scrape(ctx context.Context) (text []byte, err error) {
	b := bytes.NewBufferString(upMetric + "1\n")
	err = o.owner.WithOwner(ctx, func(ctx context.Context, client *endpoint.Client) error {
		ctx, cancel := o.owner.Bounded(ctx)
		defer cancel()
		info, err := client.ServerInfo(ctx)
		if err != nil {
			return err
		}
		return metrics.Write(b, info)
	})
	return bytes.Map(metricRune, b.Bytes()), err
}

// metricRune replaces characters that must not reach a terminal, because a peer may have put them into a label and the
// format cannot escape them.
func metricRune(r rune) rune {
	if term.Unprintable(r) {
		return utf8.RuneError
	}
	return r
}

// Limits of the HTTP server, which answers one kind of request for few clients.
const (
	httpRead    = 5 * time.Second
	httpIdle    = 2 * time.Minute
	httpHeaders = 16 << 10
	httpBye     = 250 * time.Millisecond // for scrapes in progress after an interrupt
	httpScrapes = 4                      // concurrent scrapes
)

// serve answers scrapes until the command is interrupted.
func (o *metricsFlags) serve(c *cobra.Command) error {
	host, port, err := net.SplitHostPort(o.listen)
	if err != nil {
		return cli.Usagef(c, "--listen %q: use HOST:PORT or :PORT", o.listen)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	ctx := c.Context()
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	server := &http.Server{
		Handler: o.handler(c.ErrOrStderr()), ReadTimeout: httpRead, WriteTimeout: httpRead + 2*o.owner.Timeout, IdleTimeout: httpIdle,
		MaxHeaderBytes: httpHeaders, ErrorLog: log.New(io.Discard, "", 0), BaseContext: func(net.Listener) context.Context { return ctx },
	}
	fmt.Fprintf(c.ErrOrStderr(), "serving metrics on http://%s/metrics\n", l.Addr())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("metrics: %w", err)
	case <-ctx.Done():
	}
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), httpBye)
	defer cancel()
	if err = server.Shutdown(bye); errors.Is(err, context.DeadlineExceeded) { // a client has connected without a request
		return server.Close()
	}
	return err
}

// handler answers scrapes. It limits concurrent scrapes and refuses others with a request to retry. It writes to out
// when the owner disappears and returns.
func (o *metricsFlags) handler(out io.Writer) http.Handler {
	slots := make(chan struct{}, httpScrapes)
	was := make(chan error, 1)
	was <- nil
	note := func(err error) {
		before := <-was
		switch {
		case err != nil && before == nil:
			fmt.Fprintf(out, "%s\n", cli.OneLine(term.Printable(err.Error())))
		case err == nil && before != nil:
			fmt.Fprintln(out, "the owner answers again")
		}
		was <- err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many scrapes at once", http.StatusServiceUnavailable)
			return
		}
		text, err := o.scrape(r.Context())
		if r.Context().Err() != nil {
			return
		}
		note(err)
		if err != nil {
			text = []byte(upMetric + "0\n")
		}
		w.Header().Set("Content-Type", metrics.ContentType)
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(text) // best effort: the client may have disconnected
	})
	return mux
}
