package gateway

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"
)

// certificateFile holds the gateway's certificate and reloads it when its files change.
type certificateFile struct {
	pair *reloaded[*tls.Certificate]
}

func openCertificateFile(cert, key string, log *slog.Logger) (*certificateFile, error) {
	pair, err := newReloaded("certificate", log, func() (*tls.Certificate, error) { return readPair(cert, key) }, cert, key)
	if err != nil {
		return nil, err
	}
	return &certificateFile{pair}, nil
}

// readPair reads a certificate and checks that it is valid now.
func readPair(cert, key string) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if now.After(pair.Leaf.NotAfter) {
		return nil, fmt.Errorf("%s expired at %v: replace it", cert, pair.Leaf.NotAfter.Format(time.RFC3339))
	}
	if now.Before(pair.Leaf.NotBefore) {
		return nil, fmt.Errorf("%s is not valid before %v", cert, pair.Leaf.NotBefore.Format(time.RFC3339))
	}
	return &pair, nil
}

func (c *certificateFile) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.pair.get(), nil
}

// expires returns the end of the certificate's validity.
func (c *certificateFile) expires() time.Time { return c.pair.get().Leaf.NotAfter }
