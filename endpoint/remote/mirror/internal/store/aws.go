package store

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"gopkg.in/ini.v1"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/local"
)

// amazonHost is the host of Amazon's S3. Requests go to the regional endpoint of the bucket.
const amazonHost = "s3.amazonaws.com"

// awsProfile is the part of a profile in Amazon's configuration files that selects a region, an endpoint and a role.
type awsProfile struct {
	region, endpoint string
	role, source     string // role_arn and source_profile
	from             string // credential_source
	external         string
	session          string
}

// awsSettings holds the settings of Amazon's tools: environment variables before the profile.
type awsSettings struct {
	profile awsProfile
	name    string // of the profile
	region  string
}

// readAWS returns the settings of the environment and of the files that AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE
// name. A file that does not exist is empty.
func readAWS() (awsSettings, error) {
	s := awsSettings{name: cmp.Or(os.Getenv("AWS_PROFILE"), "default")}
	home, _ := os.UserHomeDir() // without a home, only the variables name files
	config, err := ini.LooseLoad(
		cmp.Or(os.Getenv("AWS_CONFIG_FILE"), filepath.Join(home, ".aws", "config")),
		cmp.Or(os.Getenv("AWS_SHARED_CREDENTIALS_FILE"), filepath.Join(home, ".aws", "credentials")),
	)
	if err != nil {
		return s, fmt.Errorf("the configuration of Amazon's tools: %w", err)
	}
	for _, section := range []string{"profile " + s.name, s.name} { // config and credentials name it differently
		get := func(key string, to *string) { *to = cmp.Or(*to, config.Section(section).Key(key).String()) }
		p := &s.profile
		get("region", &p.region)
		get("endpoint_url", &p.endpoint)
		get("role_arn", &p.role)
		get("source_profile", &p.source)
		get("credential_source", &p.from)
		get("external_id", &p.external)
		get("role_session_name", &p.session)
	}
	s.region = cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), s.profile.region)
	return s, nil
}

// endpoint returns the host of the S3 service: Amazon's, or a configured one.
func (s awsSettings) endpoint() (host string, secure bool, err error) {
	text := cmp.Or(os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"), s.profile.endpoint)
	if text == "" {
		return amazonHost, true, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", false, fmt.Errorf("AWS_ENDPOINT_URL %q is not https://HOST", text)
	}
	return u.Host, u.Scheme == "https", nil
}

// tokenService returns the URL of the service that issues credentials of roles: the region's, or a configured one. It
// receives credentials and tokens, so it must use https, or be on this host.
func (s awsSettings) tokenService() (string, error) {
	text := cmp.Or(os.Getenv("AWS_ENDPOINT_URL_STS"), os.Getenv("AWS_ENDPOINT_URL"), s.profile.endpoint)
	if text == "" && s.region == "" {
		return credentials.DefaultSTSRoleEndpoint, nil
	}
	if text == "" {
		return "https://sts." + s.region + ".amazonaws.com", nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && (u.Scheme != "http" || !local.Reached(u.Hostname())) {
		return "", fmt.Errorf("the endpoint %q for roles is not https://HOST", text)
	}
	return text, nil
}

// credentials returns the credentials of the environment, or of the profile: its keys, or those of its role. At Amazon
// the machine's role is used too. Without any, requests are not signed and can read public objects only.
func (s awsSettings) credentials(host string, client *http.Client) (*credentials.Credentials, error) {
	sts, err := s.tokenService()
	if err != nil {
		return nil, err
	}
	// The role of a web identity is given explicitly, so it is used at other hosts too.
	machine := &credentials.IAM{Client: client, Region: s.region}
	webIdentity := os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != ""
	if webIdentity {
		machine.Endpoint = sts
	}
	providers := []credentials.Provider{&credentials.EnvAWS{}}
	if s.profile.role != "" {
		source, err := s.roleSource(machine)
		if err != nil {
			return nil, err
		}
		return credentials.New(&roleProvider{source: source, client: client, endpoint: sts, options: credentials.STSAssumeRoleOptions{
			RoleARN: s.profile.role, RoleSessionName: cmp.Or(s.profile.session, "sharedtensor"), ExternalID: s.profile.external, Location: s.region,
		}}), nil
	}
	providers = append(providers, &credentials.FileAWSCredentials{})
	if host == amazonHost || webIdentity {
		providers = append(providers, machine)
	}
	anonymous := &credentials.Static{Value: credentials.Value{SignerType: credentials.SignatureAnonymous}}
	return credentials.NewChainCredentials(append(providers, anonymous)), nil
}

// roleSource returns the credentials with which the profile's role is assumed.
func (s awsSettings) roleSource(machine *credentials.IAM) (*credentials.Credentials, error) {
	switch {
	case os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "":
		return credentials.New(machine), nil
	case s.profile.source != "":
		return credentials.NewFileAWSCredentials("", s.profile.source), nil
	case s.profile.from == "Environment":
		return credentials.NewEnvAWS(), nil
	case s.profile.from == "Ec2InstanceMetadata", s.profile.from == "EcsContainer":
		return credentials.New(machine), nil
	}
	return nil, fmt.Errorf("profile %q has a role_arn, but neither source_profile nor a known credential_source", s.name)
}

// roleProvider assumes a role, and assumes it again before its credentials expire.
type roleProvider struct {
	credentials.Expiry
	source   *credentials.Credentials
	client   *http.Client
	endpoint string
	options  credentials.STSAssumeRoleOptions
}

// RetrieveWithCredContext implements credentials.Provider.
func (r *roleProvider) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	source, err := r.source.GetWithContext(cc)
	if err != nil {
		return credentials.Value{}, fmt.Errorf("%w: the credentials for role %s: %w", ErrDenied, r.options.RoleARN, err)
	}
	options := r.options
	options.AccessKey, options.SecretKey, options.SessionToken = source.AccessKeyID, source.SecretAccessKey, source.SessionToken
	got, err := (&credentials.STSAssumeRole{Client: r.client, STSEndpoint: r.endpoint, Options: options}).RetrieveWithCredContext(cc)
	var said credentials.ErrorResponse
	if errors.As(err, &said) && said.STSError.Type != "Receiver" { // the request is at fault, not the service
		err = fmt.Errorf("%w: %w", ErrDenied, err)
	}
	if err != nil {
		return credentials.Value{}, fmt.Errorf("assume role %s: %w", r.options.RoleARN, err)
	}
	r.SetExpiration(got.Expiration, credentials.DefaultExpiryWindow)
	return got, nil
}

// Retrieve implements credentials.Provider.
func (r *roleProvider) Retrieve() (credentials.Value, error) { return r.RetrieveWithCredContext(nil) }
