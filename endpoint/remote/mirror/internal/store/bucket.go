package store

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/minio/minio-go/v7"
)

// maxListed limits the objects of a folder that are listed.
const maxListed = 100_000

// bucket is a model in an S3 bucket, or in a store with the same protocol.
type bucket struct {
	scheme    string
	bucket    string
	key       string // without a trailing slash
	endpoint  string
	options   minio.Options
	core      *minio.Core
	transport *http.Transport
}

func openBucket(rest string, o Options) (Place, error) {
	b, err := parseBucket("s3", rest)
	if err != nil {
		return nil, err
	}
	settings, err := readAWS()
	if err != nil {
		return nil, err
	}
	client := NewHTTPClient(o.TLS, o.Connections, nil)
	b.transport, _ = client.Transport.(*http.Transport)
	var secure bool
	if b.endpoint, secure, err = settings.endpoint(); err != nil {
		return nil, err
	}
	given, err := settings.credentials(b.endpoint, client)
	if err != nil {
		return nil, fmt.Errorf("the source s3://%s: %w", rest, err)
	}
	b.options = minio.Options{Creds: given, Secure: secure, Transport: b.transport, MaxRetries: 1} // the caller retries
	return b, b.connect(settings.region)
}

// connect makes a client for a region.
func (b *bucket) connect(region string) (err error) {
	options := b.options
	options.Region = region
	if b.core, err = minio.NewCore(b.endpoint, &options); err != nil {
		return fmt.Errorf("the source %s: %w", b.address(b.key), err)
	}
	b.options.Region = region
	return nil
}

// address returns the address of an object or a folder.
func (b *bucket) address(key string) string { return b.scheme + "://" + b.bucket + "/" + key }

// Name implements Place.
func (b *bucket) Name() string { return baseName(b.key) }

// Pinned implements Place.
func (*bucket) Pinned() bool { return false }

// Close implements Place.
func (b *bucket) Close() { b.transport.CloseIdleConnections() }

// Find implements Place.
func (b *bucket) Find(ctx context.Context) (*Model, error) {
	m, err := b.find(ctx)
	if region := regionOf(err); region != "" && region != b.options.Region {
		if err := b.connect(region); err != nil { // the bucket is in another region than the settings name
			return nil, err
		}
		m, err = b.find(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.address(b.key), bucketError(err))
	}
	m.Source = b.address(b.key) + "@" + identityOf(m.Files)
	return m, nil
}

// regionOf returns the region that a refusal names; empty if it names none.
func regionOf(err error) string {
	var said minio.ErrorResponse
	if !errors.As(err, &said) {
		return ""
	}
	return said.Region
}

func (b *bucket) find(ctx context.Context) (*Model, error) {
	folder, index, one := path.Dir(b.key), "", ""
	switch name := path.Base(b.key); {
	case strings.HasSuffix(name, ".json"):
		index = name
	case strings.HasSuffix(name, ".safetensors"):
		one = name
	default:
		folder = b.key
		names, err := b.list(ctx, folder+"/")
		if err != nil {
			return nil, err
		}
		if index, one, err = pick(b.address(folder), names); err != nil {
			return nil, err
		}
	}
	m, wanted := &Model{}, []string{one}
	if index != "" {
		f, err := b.object(ctx, path.Join(folder, index))
		if err != nil {
			return nil, err
		}
		if m.Index, err = readIndex(ctx, f); err != nil {
			return nil, err
		}
		if wanted, err = shardsOf(f.Path, m.Index); err != nil {
			return nil, err
		}
	}
	for _, name := range wanted {
		f, err := b.object(ctx, path.Join(folder, name))
		if err != nil {
			return nil, err
		}
		m.Files = append(m.Files, f)
	}
	return m, nil
}

// list returns the names of the objects in a folder.
func (b *bucket) list(ctx context.Context, prefix string) (names []string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for o := range b.core.Client.ListObjects(ctx, b.bucket, minio.ListObjectsOptions{Prefix: prefix}) {
		if o.Err != nil {
			return nil, o.Err
		}
		if names = append(names, strings.TrimPrefix(o.Key, prefix)); len(names) > maxListed {
			return nil, fmt.Errorf("%w: more than %d objects; name the index or the file", ErrUnsupported, maxListed)
		}
	}
	return names, nil
}

// object returns the current version of an object. The ETag makes range requests fail if the object is replaced later.
func (b *bucket) object(ctx context.Context, key string) (*File, error) {
	core := b.core
	info, err := core.StatObject(ctx, b.bucket, key, minio.StatObjectOptions{Checksum: true})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	f := &File{Path: b.address(key), Bytes: info.Size, Identity: fmt.Sprint(info.ETag, " ", info.Size), SHA256: wholeSHA256(info)}
	if info.ETag == "" { // uploading the same bytes again would look like a new version
		f.Identity = fmt.Sprint(info.VersionID, " ", info.LastModified.UnixNano(), " ", info.Size)
	}
	f.Open = func(ctx context.Context, begin, end int64) (io.ReadCloser, error) {
		opts := minio.GetObjectOptions{VersionID: info.VersionID}
		if info.ETag != "" {
			opts.Set("If-Match", `"`+strings.Trim(info.ETag, `"`)+`"`)
		}
		if begin > 0 || end < info.Size {
			if err := opts.SetRange(begin, end-1); err != nil {
				return nil, err
			}
		}
		body, got, header, err := core.GetObject(ctx, b.bucket, key, opts)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return nil, cause
			}
			return nil, bucketError(err)
		}
		if err := checkObject(got, header, begin, end, info.Size); err != nil {
			body.Close()
			return nil, err
		}
		return body, nil
	}
	return f, nil
}

// wholeSHA256 returns the digest that an object was uploaded with. It returns zero if there is none, or if the digest
// was computed from parts.
func wholeSHA256(info minio.ObjectInfo) (d [32]byte) {
	if info.ChecksumSHA256 == "" || strings.Contains(info.ChecksumSHA256, "-") || info.ChecksumMode == "COMPOSITE" {
		return d
	}
	if raw, err := base64.StdEncoding.DecodeString(info.ChecksumSHA256); err == nil && len(raw) == len(d) {
		copy(d[:], raw)
	}
	return d
}

// checkObject validates the response to a range request, as CheckRange does.
func checkObject(got minio.ObjectInfo, header http.Header, begin, end, size int64) error {
	resp := &http.Response{Header: header, ContentLength: got.Size, StatusCode: http.StatusOK}
	if header.Get("Content-Range") != "" {
		resp.StatusCode = http.StatusPartialContent
	}
	err := CheckRange(resp, begin, end, size)
	if errors.Is(err, ErrNoRanges) && begin == 0 {
		return nil
	}
	return err
}

// bucketError converts S3 errors to this package's errors.
func bucketError(err error) error {
	var said minio.ErrorResponse
	var outer *url.Error
	switch {
	case errors.As(err, &said) && said.StatusCode != 0:
		text := said.Code
		if said.Message != "" {
			text += ": " + said.Message
		}
		return &StatusError{Status: said.StatusCode, Text: Shortened(text)}
	case errors.As(err, &outer):
		return outer.Err // its URL may contain a signature
	}
	return err
}
