package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/local"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream"
)

// transfer holds the options shared by send and receive: the gateway's address and credentials.
type transfer struct {
	address               string
	useTLS, network       bool
	plaintext             bool // a token may be sent without TLS
	ca, token             string
	clientCert, clientKey string
	json                  bool
}

func (t *transfer) add(c *cobra.Command, direction string) {
	f := c.Flags()
	f.StringVar(&t.address, direction, "127.0.0.1:50051", "gRPC address of the gateway")
	f.BoolVar(&t.useTLS, "tls", false, "use TLS, with the certificate authorities of this system or --tls-ca")
	f.StringVar(&t.ca, "tls-ca", "", "PEM file of the certificate authority that signed the gateway's certificate")
	f.StringVar(&t.clientCert, "tls-cert", "", "PEM file of a client certificate")
	f.StringVar(&t.clientKey, "tls-key", "", "PEM file of its key")
	f.StringVar(&t.token, "token", os.Getenv("SHAREDTENSOR_TOKEN"), "token for the gateway (default: SHAREDTENSOR_TOKEN)")
	f.BoolVar(&t.plaintext, "insecure-token", false, "send the token without TLS also to another host, where the network can read it")
	f.BoolVar(&t.network, "network", false, "transfer the bytes over gRPC even if the gateway's owner is on this host")
	f.BoolVar(&t.json, "json", false, "print JSON")
}

// bearer is a token for the credentials of each call.
type bearer struct {
	token string
	tls   bool
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b bearer) RequireTransportSecurity() bool { return b.tls }

func (t *transfer) dial() (*grpc.ClientConn, error) {
	secure := t.useTLS || t.ca != "" || t.clientCert != ""
	transport := insecure.NewCredentials()
	if t.token != "" && !secure && !t.plaintext && !t.loopback() {
		return nil, usageError{fmt.Errorf("the token would go to %s without encryption: use --tls, or --insecure-token to send it anyway", t.address)}
	}
	if secure {
		config, err := t.tlsConfig()
		if err != nil {
			return nil, err
		}
		transport = credentials.NewTLS(config)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	}
	if t.token != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer{t.token, secure}))
	}
	return grpc.NewClient(t.address, options...)
}

// loopback reports whether the gateway's address is one of this host that no other host can have.
func (t *transfer) loopback() bool {
	if strings.HasPrefix(t.address, "unix:") {
		return true
	}
	name, _, err := net.SplitHostPort(t.address)
	return err == nil && local.Loopback(name)
}

func (t *transfer) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.ca != "" {
		pem, err := os.ReadFile(t.ca)
		if err != nil {
			return nil, fmt.Errorf("--tls-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usageError{fmt.Errorf("--tls-ca: %s has no certificate", t.ca)}
		}
	}
	if t.clientCert != "" || t.clientKey != "" {
		pair, err := tls.LoadX509KeyPair(t.clientCert, t.clientKey)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// transferAttempts is the number of consecutive reconnects without progress before a transfer fails, about 20 s.
const transferAttempts = 10

// link is a connection to a gateway, and to its owner if the owner is on this host.
type link struct {
	device *host.Device
	conn   *grpc.ClientConn
	client *stream.Client
	owner  *endpoint.Client // nil if bytes must be transferred
}

// open connects to the gateway. If the gateway has a loopback address and its owner is on this host, open also connects to the
// owner's socket, unless --network was given or the socket is not usable.
func (t *transfer) open(ctx context.Context, progress io.Writer) (l *link, err error) {
	l = &link{}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	// Received bytes are written once and in order, so pages are allocated on demand.
	if l.device, err = host.Open(host.Lazy()); err != nil {
		return l, err
	}
	if l.conn, err = t.dial(); err != nil {
		return l, err
	}
	l.client = stream.NewClient(l.conn, stream.ClientOptions{Device: l.device, Progress: showProgress(progress), Attempts: transferAttempts})
	local, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	socket, err := l.client.Local(local)
	if err != nil {
		return l, fmt.Errorf("no gateway answers on %s: %w", t.address, err)
	}
	if socket == "" || t.network || !t.loopback() { // another host must not choose a socket of this one
		return l, nil
	}
	owner, err := endpoint.Dial(local, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{l.device}, Label: "sharedtensor-gateway"})
	if err != nil {
		fmt.Fprintf(progress, "the owner is on this host, but its socket cannot be used, so the bytes go over gRPC: %v\n", err)
		return l, nil
	}
	l.owner = owner
	return l, nil
}

func (l *link) close() {
	if l.owner != nil {
		l.owner.Close()
	}
	if l.conn != nil {
		l.conn.Close()
	}
	if l.device != nil {
		l.device.Close()
	}
}

// way returns one word for how tensors were transferred.
func (l *link) way() string {
	if l.owner != nil {
		return "unix socket, shared in place"
	}
	return "grpc"
}

// showProgress returns a function that prints progress to a terminal. It returns nil for other writers.
func showProgress(w io.Writer) func(done, total int64) {
	file, ok := w.(*os.File)
	if !ok {
		return nil
	}
	if info, err := file.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	begin, last := time.Now(), time.Time{}
	return func(done, total int64) {
		if now := time.Now(); done < total && now.Sub(last) < 200*time.Millisecond {
			return
		} else {
			last = now
		}
		rate := float64(done) / 1e6 / max(time.Since(begin).Seconds(), 1e-3)
		fmt.Fprintf(w, "\r%3d %%  %d of %d MB  %.0f MB/s ", 100*done/max(total, 1), done/1e6, total/1e6, rate)
		if done == total {
			fmt.Fprintln(w)
		}
	}
}

// errSuffix reports an unsupported file type.
var errSuffix = errors.New("files end in .safetensors, .pt, .pth or .bin")
