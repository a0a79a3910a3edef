package store

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// maxListed limits the objects of a folder that are listed.
const maxListed = 100_000

// bucket is a model in an S3 bucket, or in a store with the same protocol.
type bucket struct {
	core      minio.Core
	transport *http.Transport
	bucket    string
	key       string // without a trailing slash
}

func openBucket(rest string, o Options) (Place, error) {
	name, key, _ := strings.Cut(rest, "/")
	if name == "" || strings.Trim(key, "/") == "" {
		return nil, fmt.Errorf("the source s3://%s is not s3://BUCKET/KEY", rest)
	}
	endpoint, secure, err := bucketEndpoint()
	if err != nil {
		return nil, err
	}
	transport, _ := NewHTTPClient(o.TLS, o.Connections, nil).Transport.(*http.Transport)
	region := os.Getenv("AWS_REGION")
	if region == "" {
		region = os.Getenv("AWS_DEFAULT_REGION")
	}
	core, err := minio.NewCore(endpoint, &minio.Options{
		Creds: bucketCredentials(endpoint), Secure: secure, Transport: transport, Region: region, MaxRetries: 1, // the caller retries
	})
	if err != nil {
		return nil, fmt.Errorf("the source s3://%s: %w", rest, err)
	}
	return &bucket{core: *core, transport: transport, bucket: name, key: strings.Trim(key, "/")}, nil
}

// bucketEndpoint returns the host of the S3 service: Amazon's, or the host set in the environment variables of Amazon's
// tools.
func bucketEndpoint() (host string, secure bool, err error) {
	text := os.Getenv("AWS_ENDPOINT_URL_S3")
	if text == "" {
		text = os.Getenv("AWS_ENDPOINT_URL")
	}
	if text == "" {
		return "s3.amazonaws.com", true, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", false, fmt.Errorf("AWS_ENDPOINT_URL %q is not https://HOST", text)
	}
	return u.Host, u.Scheme == "https", nil
}

// bucketCredentials returns the credentials of the environment or of Amazon's configuration file, and at Amazon also
// the machine's credentials. Without any, requests are not signed and can read public objects only.
func bucketCredentials(endpoint string) *credentials.Credentials {
	providers := []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}
	if endpoint == "s3.amazonaws.com" {
		providers = append(providers, &credentials.IAM{})
	}
	return credentials.NewChainCredentials(append(providers, &credentials.Static{Value: credentials.Value{SignerType: credentials.SignatureAnonymous}}))
}

// Name implements Place.
func (b *bucket) Name() string { return baseName(b.key) }

// Pinned implements Place.
func (*bucket) Pinned() bool { return false }

// Close implements Place.
func (b *bucket) Close() { b.transport.CloseIdleConnections() }

// Find implements Place.
func (b *bucket) Find(ctx context.Context) (*Model, error) {
	m, err := b.find(ctx)
	if err != nil {
		return nil, fmt.Errorf("s3://%s/%s: %w", b.bucket, b.key, bucketError(err))
	}
	m.Source = "s3://" + b.bucket + "/" + b.key + "@" + identityOf(m.Files)
	return m, nil
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
		if index, one, err = pick("s3://"+b.bucket+"/"+folder, names); err != nil {
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
	info, err := b.core.StatObject(ctx, b.bucket, key, minio.StatObjectOptions{Checksum: true})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	f := &File{Path: "s3://" + b.bucket + "/" + key, Bytes: info.Size, Identity: fmt.Sprint(info.ETag, " ", info.Size), SHA256: wholeSHA256(info)}
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
		body, got, header, err := b.core.GetObject(ctx, b.bucket, key, opts)
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
