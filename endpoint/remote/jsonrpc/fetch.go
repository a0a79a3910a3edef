package jsonrpc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// fetchPatience is how long a server of a reference may take to begin to answer.
const fetchPatience = 30 * time.Second

// checkPrefix checks a prefix of URLs that may be fetched. It has to end the host, or what is allowed for example.com
// would be for example.com.evil.org.
func checkPrefix(prefix string) error {
	u, err := url.Parse(prefix)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%q is not the beginning of an http or https URL", prefix)
	}
	if !strings.HasSuffix(u.Path, "/") {
		return fmt.Errorf("%q has to end with a slash", prefix)
	}
	return nil
}

// newFetcher is the client for references. It uses no proxy of the environment, and follows redirections within what is
// allowed only.
func newFetcher(allowed []string) *http.Client {
	transport := &http.Transport{ResponseHeaderTimeout: fetchPatience, MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, DisableCompression: true}
	return &http.Client{Transport: transport, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) > 5 {
			return errors.New("too many redirections")
		}
		return checkURL(r.URL, allowed)
	}}
}

// checkURL refuses what is below none of the prefixes. Paths with dots are refused: servers may take them for other
// paths.
func checkURL(u *url.URL, allowed []string) error {
	if len(allowed) == 0 {
		return fmt.Errorf("%w: this gateway fetches nothing: start it with --fetch", errRefused)
	}
	clean := u.User == nil && !slices.Contains(strings.Split(u.Path, "/"), "..")
	for _, prefix := range allowed {
		p, err := url.Parse(prefix)
		if err == nil && clean && u.Scheme == p.Scheme && u.Host == p.Host && strings.HasPrefix(u.Path, p.Path) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s is below none of the URLs of --fetch", errRefused, u.Redacted())
}

// fetch begins to fetch a URL. The caller closes the body.
func (c *Component) fetch(ctx context.Context, text string) (*http.Response, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errParams, err)
	}
	if err := checkURL(u, c.Fetch); err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errParams, err)
	}
	if trace, ok := intercept.TraceFrom(ctx); ok {
		request.Header.Set(intercept.TraceParent, trace.String())
		if trace.State != "" {
			request.Header.Set(intercept.TraceState, trace.State)
		}
	}
	response, err := c.fetcher.Do(request)
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("fetch %s: %s", u.Redacted(), response.Status), response.Body.Close())
	}
	return response, nil
}

// wantedDigest reads a SHA-256 in hexadecimal, which a reference has to have: what it names must not change unnoticed.
func wantedDigest(text string) ([]byte, error) {
	digest, err := hex.DecodeString(text)
	if err != nil || len(digest) != sha256.Size {
		return nil, fmt.Errorf("%w: a url comes with its sha256 in hexadecimal", errParams)
	}
	return digest, nil
}

// fromURL fetches the bytes of a tensor into memory of its own, and compares their digest.
func (in *incoming) fromURL(ctx context.Context, s tensorSpec) (_ *tensor.Tensor, err error) {
	want, err := wantedDigest(s.sha256)
	if err != nil {
		return nil, err
	}
	size, err := s.byteSize()
	if err != nil {
		return nil, err
	}
	if size > int64(in.c.MaxModel) {
		return nil, fmt.Errorf("%w: a tensor of %d bytes", errTooLarge, size)
	}
	response, err := in.c.fetch(ctx, s.url)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.ContentLength != size {
		return nil, fmt.Errorf("%w: the tensor has %d bytes, and the url %d", errParams, size, response.ContentLength)
	}
	t, err := tensor.Empty(in.c.dev, s.dtype, s.shape)
	if err != nil {
		return nil, err
	}
	in.held = append(in.held, t)
	digest := sha256.New()
	if err := t.FillFrom(io.TeeReader(response.Body, digest)); err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	if got := digest.Sum(nil); !slices.Equal(got, want) {
		return nil, fmt.Errorf("%w: what the url holds has SHA-256 %s", errParams, hex.EncodeToString(got))
	}
	return t, nil
}

// publishURL publishes a file that is fetched.
func (c *Component) publishURL(ctx context.Context, p *publishParams) (out published, err error) {
	want, err := wantedDigest(p.SHA256)
	if err != nil {
		return out, err
	}
	response, err := c.fetch(ctx, p.URL)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	switch n := response.ContentLength; {
	case n < 0:
		return out, fmt.Errorf("%w: the url does not tell its length", errParams)
	case n > int64(c.MaxModel):
		return out, fmt.Errorf("%w: a model of %d bytes", errTooLarge, n)
	}
	release, err := c.arriving.reserve(response.ContentLength, int64(c.MaxModel))
	if err != nil {
		return out, err
	}
	defer release()
	return c.publishStream(ctx, p.Name, response.Body, response.ContentLength, want, p.URL)
}
