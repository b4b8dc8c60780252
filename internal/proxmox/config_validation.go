// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// normalize validates a Cluster's config and completes its URLs. Errors begin with the
// field and never contain a secret.
func (c *ClusterConfig) normalize() error {
	for _, check := range []func() error{c.checkRegion, c.checkURLs, c.checkTrust, c.checkProxy, c.checkCredentials, c.checkRoot} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checkRegion requires a label value. The region is also part of provider IDs.
func (c *ClusterConfig) checkRegion() error {
	if c.Region == "" {
		return errors.New("region: missing: want a name for the cluster, the value of the label topology.kubernetes.io/region")
	}
	if problems := validation.IsValidLabelValue(c.Region); len(problems) > 0 {
		return fmt.Errorf("region: found %q, want a label value: at most 63 letters, digits, \"-\", \"_\" and \".\", with a letter or digit at both ends", c.Region)
	}
	return nil
}

func (c *ClusterConfig) checkURLs() error {
	if len(c.URLs) == 0 {
		return errors.New("url: missing: want https://host:8006, or urls with one for each of several hosts")
	}
	completed := make([]string, 0, len(c.URLs))
	for i, text := range c.URLs {
		field := "url"
		if len(c.URLs) > 1 {
			field = fmt.Sprintf("urls[%d]", i)
		}
		base, err := completeURL(text)
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		if !slices.Contains(completed, base) {
			completed = append(completed, base)
		}
	}
	c.URLs = completed
	return nil
}

// completeURL adds the API path to https://host:8006.
func completeURL(text string) (string, error) {
	const want = "want https://host:8006"
	u, err := url.Parse(text)
	switch {
	case err != nil || u.User != nil:
		// The URL may contain a password, so the error omits it.
		return "", fmt.Errorf("found a value that is not a plain URL, %s without user and password", want)
	case u.Scheme == "http":
		return "", fmt.Errorf("found %q, %s: Proxmox VE supports TLS only", text, want)
	case u.Scheme != "https" || u.Hostname() == "":
		return "", fmt.Errorf("found %q, %s", text, want)
	case u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("found %q, %s without query and fragment", text, want)
	}
	path := strings.TrimRight(u.Path, "/")
	switch {
	case path == "":
		path = apiPath
	case !strings.HasSuffix(path, apiPath):
		return "", fmt.Errorf("found %q, %s or %s%s", text, want, "https://host:8006", apiPath)
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: path}).String(), nil
}

func (c *ClusterConfig) checkTrust() error {
	if c.Insecure && (c.CA != "" || len(c.Fingerprints) > 0) {
		return errors.New("insecure: found true together with ca, ca_file or fingerprint: remove one, since insecure accepts any certificate")
	}
	if c.CA != "" && len(c.Fingerprints) > 0 {
		return errors.New("fingerprint: found together with ca or ca_file: set one of them")
	}
	if c.CA != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(c.CA)) {
		return errors.New("ca: found no certificate, want PEM (-----BEGIN CERTIFICATE-----), for instance /etc/pve/pve-root-ca.pem of a Proxmox host")
	}
	for _, fingerprint := range c.Fingerprints {
		if _, err := parseFingerprint(fingerprint); err != nil {
			return fmt.Errorf("fingerprint: %w", err)
		}
	}
	return nil
}

var (
	tokenIDPattern  = regexp.MustCompile(`^[^\s:/@!]+@[A-Za-z][A-Za-z0-9._-]*![A-Za-z][A-Za-z0-9._-]*$`)
	usernamePattern = regexp.MustCompile(`^[^\s:/@!]+@[A-Za-z][A-Za-z0-9._-]*$`)
)

func (c *ClusterConfig) checkCredentials() error {
	hasToken := c.TokenID+c.TokenIDFile+c.TokenSecretFile+string(c.TokenSecret) != ""
	hasLogin := c.Username+string(c.Password)+c.passwordFile != ""
	switch {
	case hasToken && hasLogin:
		return errors.New("token_id: found a token and a username or password: set one of them, preferably the token")
	case hasToken:
		return c.checkToken()
	case hasLogin:
		return c.checkLogin()
	}
	return errors.New("token_id: missing: set token_id and token_secret (or token_id_file and token_secret_file), or username and password")
}

func (c *ClusterConfig) checkToken() error {
	switch {
	case c.TokenID != "" && c.TokenIDFile != "":
		return errors.New("token_id_file: found together with token_id: set one of them")
	case c.TokenSecret != "" && c.TokenSecretFile != "":
		return errors.New("token_secret_file: found together with token_secret: set one of them")
	case c.TokenID == "" && c.TokenIDFile == "":
		return errors.New("token_id: missing, but the secret is set: want user@realm!name, or token_id_file")
	case c.TokenSecret == "" && c.TokenSecretFile == "":
		return errors.New("token_secret: missing, but token_id is set: want the secret that Proxmox showed when the token was created, or token_secret_file")
	}
	if _, err := (&source{path: c.TokenSecretFile}).read(); err != nil {
		return fmt.Errorf("token_secret_file: %w: mount the file with the token's secret", err)
	}
	field, found := "token_id", c.TokenID
	if c.TokenIDFile != "" {
		id, err := (&source{path: c.TokenIDFile}).read()
		if err != nil {
			return fmt.Errorf("token_id_file: %w: mount the file with the token's ID", err)
		}
		field, found = "token_id_file", id
	}
	if strings.Contains(found, "=") {
		// Copied from an Authorization header: it contains the secret.
		return fmt.Errorf("%s: found \"=\" in it, want only user@realm!name: set token_secret to the part after \"=\"", field)
	}
	if !tokenIDPattern.MatchString(found) {
		return fmt.Errorf("%s: found %q, want user@realm!name, for instance kubernetes@pve!karpenter", field, found)
	}
	return nil
}

func (c *ClusterConfig) checkRoot() error {
	if c.Root == nil {
		return nil
	}
	return c.Root.check()
}

func (c *ClusterConfig) checkLogin() error {
	switch {
	case c.Username == "":
		return errors.New("username: missing, but password is set: want user@realm")
	case c.Password == "" && c.passwordFile == "":
		return errors.New("password: missing, but username is set")
	case !usernamePattern.MatchString(c.Username):
		return fmt.Errorf("username: found %q, want user@realm, for instance root@pam", c.Username)
	}
	return nil
}
