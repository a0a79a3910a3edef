package natslink

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Leaf is the connection of a server to the leaf-node listeners of a cluster. In the cluster, the server has the account of
// the credentials.
type Leaf struct {
	// URLs are the comma-separated URLs of the listeners, such as nats-leaf://host:7422, or tls://host:7422.
	URLs string
	// Domain is the JetStream domain of the cluster. It must have one, because a leaf node does not pass on requests to the
	// JetStream of no domain.
	Domain string
	// Credentials is the credentials file, if the cluster requires one.
	Credentials string
	// TLS has the files for connections with TLS.
	TLS TLSFiles
}

// inDomain returns the subject under which the JetStream of a domain receives requests on a subject. An empty domain is
// that of the server itself.
func inDomain(domain, subject string) string {
	if request, is := strings.CutPrefix(subject, api); is && domain != "" {
		return "$JS." + domain + ".API." + request
	}
	if domain != "" && strings.HasPrefix(subject, "$KV.") {
		return "$JS." + domain + ".API." + subject
	}
	return subject
}

// mapDomain sends what the clients of an account send to JetStream to that of a domain.
func mapDomain(account *server.Account, domain string) error {
	for _, subject := range []string{api + "INFO", api + "STREAM.>", api + "CONSUMER.>", api + "DIRECT.>", api + "ACCOUNT.>", "$KV.>"} {
		if err := account.AddMapping(subject, inDomain(domain, subject)); err != nil {
			return err
		}
	}
	return nil
}

// leafReconnect is the interval at which a server tries to connect to its cluster.
const leafReconnect = time.Second

// Check returns an error for an invalid field and for an unreadable file of TLS.
func (l Leaf) Check() error {
	_, err := l.options()
	return err
}

func (l Leaf) options() (server.LeafNodeOpts, error) {
	if l.Domain == "" || strings.ContainsAny(l.Domain, ".*> \t") {
		return server.LeafNodeOpts{}, fmt.Errorf("%q is not the JetStream domain of a NATS cluster", l.Domain)
	}
	remote := &server.RemoteLeafOpts{Credentials: l.Credentials}
	for one := range strings.SplitSeq(l.URLs, ",") {
		u, err := url.Parse(strings.TrimSpace(one))
		if err != nil || u.Host == "" {
			return server.LeafNodeOpts{}, errors.New("a leaf-node listener of a NATS cluster is not a URL such as nats-leaf://host:7422")
		}
		remote.TLS = remote.TLS || u.Scheme == "tls"
		remote.URLs = append(remote.URLs, u)
	}
	if remote.TLS = remote.TLS || l.TLS != (TLSFiles{}); remote.TLS {
		config, err := l.TLS.config()
		if err != nil {
			return server.LeafNodeOpts{}, err
		}
		remote.TLSConfig, remote.TLSTimeout = config, tlsTimeout.Seconds()
	}
	return server.LeafNodeOpts{Remotes: []*server.RemoteLeafOpts{remote}, ReconnectInterval: leafReconnect}, nil
}

// config returns the configuration of a client.
func (f TLSFiles) config() (*tls.Config, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		text, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s contains no certificate in PEM", f.CA)
		}
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
