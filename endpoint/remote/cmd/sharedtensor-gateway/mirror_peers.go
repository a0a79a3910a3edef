package main

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/edge"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/local"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// maxTakers limits the concurrent requests of other mirrors.
const maxTakers = 64

// peerStall is the time for which another mirror may neither read nor send what it owes.
const peerStall = 30 * time.Second

// maxPeerConnections limits the connections of other mirrors.
const maxPeerConnections = 1024

// mirrorPeers holds the settings of `mirror` for exchanging data with other mirrors.
type mirrorPeers struct {
	nats, credentials string
	listen, url       string
	certFile, keyFile string
	insecure          bool
	options           mirror.PeersOptions
	stall             time.Duration // 0 means peerStall
	listener          net.Listener
	server            *http.Server
	served            chan struct{}
	conn              *nats.Conn
	peers             *mirror.Peers
}

// flags adds the settings to the command.
func (p *mirrorPeers) flags(f *pflag.FlagSet) {
	f.StringVar(&p.nats, "nats", "", "NATS servers by which mirrors find each other; without, everything comes from the source")
	f.StringVar(&p.credentials, "nats-credentials", "", "credentials file for the NATS servers")
	f.StringVar(&p.listen, "peers-listen", "127.0.0.1:0", "address where other mirrors are given what is here, with --nats; off for nothing")
	f.StringVar(&p.url, "peers-url", "", "https://HOST:PORT where other mirrors reach that address")
	f.StringSliceVar(&p.options.Trusted, "peers-trust", nil, "hosts to take from, and to send --token to over https: names, *.DOMAIN, addresses, networks")
	f.StringVar(&p.certFile, "peers-cert", "", "PEM file of the certificate of that address, which it needs beyond loopback, and --token")
	f.StringVar(&p.keyFile, "peers-key", "", "PEM file of its key")
	f.IntVar(&p.options.Fanout, "peers-fanout", 1, "maximum number of mirrors that this one serves concurrently")
	f.BoolVar(&p.insecure, "insecure", false, "serve other hosts without a certificate or token")
}

// check validates the settings before anything is opened.
func (p *mirrorPeers) check(token string) error {
	switch {
	case p.nats == "" && (p.url != "" || len(p.options.Trusted) > 0 || p.certFile != "" || p.keyFile != ""):
		return usageError{errors.New("--peers-… requires --nats")}
	case (p.certFile == "") != (p.keyFile == ""):
		return usageError{errors.New("--peers-cert and --peers-key must be set together")}
	case p.options.Fanout < 1:
		return usageError{errors.New("--peers-fanout: it must be 1 or more")}
	case p.nats == "" || p.listen == "off":
		return nil
	}
	host, _, err := net.SplitHostPort(p.listen)
	if err != nil {
		return usageError{fmt.Errorf("--peers-listen: %w", err)}
	}
	if local.Loopback(host) {
		return nil
	}
	if p.insecure {
		if p.url == "" && (host == "" || net.ParseIP(host).IsUnspecified()) {
			return usageError{fmt.Errorf("--peers-listen %s: set --peers-url to the name of this host", p.listen)}
		}
		return nil
	}
	if p.certFile == "" || token == "" {
		return usageError{fmt.Errorf("--peers-listen %s can be reached from other hosts: set --peers-cert, --peers-key and --token, or --insecure", p.listen)}
	}
	if p.url == "" {
		return usageError{fmt.Errorf("--peers-listen %s: set --peers-url to the name of this host", p.listen)}
	}
	return nil
}

// open connects to NATS and, if configured, serves local data to other mirrors. The caller calls close, also after an
// error.
func (p *mirrorPeers) open(token string, client *tls.Config) (err error) {
	if p.nats == "" {
		return nil
	}
	opts := []nats.Option{nats.Name("sharedtensor-gateway mirror")}
	if p.credentials != "" {
		opts = append(opts, nats.UserCredentials(p.credentials))
	}
	if p.conn, err = natslink.Connect(p.nats, opts...); err != nil {
		return fmt.Errorf("--nats: %w", err)
	}
	p.options.Token, p.options.TLS = token, client
	if p.listen != "off" {
		if err := p.bind(); err != nil {
			return fmt.Errorf("--peers-listen: %w", err)
		}
	}
	if p.peers, err = mirror.NewPeers(p.conn, p.options); err != nil {
		return usageError{err}
	}
	if p.listener != nil {
		p.serve(p.peers, token)
	}
	return nil
}

// bind opens the listener and sets the advertised address in the options.
func (p *mirrorPeers) bind() error {
	l, err := net.Listen("tcp", p.listen)
	if err != nil {
		return err
	}
	l = edge.Listen(l, maxPeerConnections, cmp.Or(p.stall, peerStall))
	scheme := "http"
	if p.certFile != "" {
		pair, err := tls.LoadX509KeyPair(p.certFile, p.keyFile)
		if err != nil {
			l.Close()
			return err
		}
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
		scheme = "https"
	}
	p.listener, p.options.URL = l, p.url
	if p.url == "" {
		p.options.URL = (&url.URL{Scheme: scheme, Host: l.Addr().String()}).String()
	}
	return nil
}

// serve answers the requests of other mirrors.
func (p *mirrorPeers) serve(peers http.Handler, token string) {
	mux := http.NewServeMux()
	mux.Handle(mirror.PeersPattern, withToken(bounded(peers), token))
	p.server = &http.Server{
		Handler: mux, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	edge.Protect(p.server, cmp.Or(p.stall, peerStall))
	p.served = make(chan struct{})
	go func() {
		defer close(p.served)
		_ = p.server.Serve(p.listener) // returns after close
	}()
}

// close undoes open.
func (p *mirrorPeers) close() {
	if p.server != nil {
		_ = p.server.Close()
		<-p.served
	} else if p.listener != nil {
		_ = p.listener.Close()
	}
	if p.conn != nil {
		p.conn.Close()
	}
}

// withToken refuses requests without the token. An empty token admits all requests.
func withToken(next http.Handler, token string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if token != "" && !admission.SameSecret(got, token) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "the token is missing or wrong", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// bounded refuses requests over the limit of concurrent ones.
func bounded(next http.Handler) http.Handler {
	slots := admission.NewSlots(maxTakers, 0)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slots.Enter(r.Context()) != nil {
			http.Error(w, "too many concurrent requests at this mirror", http.StatusServiceUnavailable)
			return
		}
		defer slots.Leave()
		next.ServeHTTP(w, r)
	})
}
