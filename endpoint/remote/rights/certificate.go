package rights

import (
	"crypto/x509"
	"slices"
	"strings"
)

// OfCertificate returns the identity of a verified client certificate. It is named by its SPIFFE ID, its common name, or the
// first of its DNS names, URIs and mail addresses.
func OfCertificate(leaf *x509.Certificate) Identity {
	var names []string
	add := func(name string) {
		if name != "" && !strings.ContainsAny(name, "\n\x00") && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, uri := range leaf.URIs {
		if uri.Scheme == "spiffe" {
			add(uri.String())
		}
	}
	add(leaf.Subject.CommonName)
	for _, name := range leaf.DNSNames {
		add(name)
	}
	for _, uri := range leaf.URIs {
		add(uri.String())
	}
	for _, address := range leaf.EmailAddresses {
		add(address)
	}
	id := Identity{Method: MethodCertificate}
	if len(names) > 0 {
		id.Name, id.Also = names[0], strings.Join(names[1:], "\n")
	}
	return id
}
