// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
)

// Check reads a Cluster's version. Its error is one line with the region, the URL, the
// cause and what to do.
func Check(ctx context.Context, c Client) error {
	_, err := c.Version(ctx)
	if err == nil {
		return nil
	}
	urls := "its URL"
	if own, ok := c.(*client); ok {
		urls = strings.Join(own.urls, ", ")
	}
	return fmt.Errorf("checking region %q: %w", c.Region(), explain(err, urls))
}

// Explain returns an error that wraps the error of a Cluster and adds what to do.
func Explain(err error) error { return explain(err, "the cluster's url") }

// explanation replaces the text of the error that it wraps.
type explanation struct {
	text string
	err  error
}

func (e *explanation) Error() string { return e.text }
func (e *explanation) Unwrap() error { return e.err }

func explain(err error, urls string) error {
	if failed, ok := errors.AsType[*attemptError](err); ok {
		urls = failed.url
	}
	var (
		notProxmox *notProxmoxError
		pin        *pinError
		untrusted  *tls.CertificateVerificationError
		record     tls.RecordHeaderError
	)
	explained := func(format string, args ...any) error {
		return &explanation{text: fmt.Sprintf(format, args...), err: err}
	}
	known := typed(err)
	if known == nil {
		known = err
	}
	switch {
	case errors.As(err, &notProxmox):
		return explained("%s responds, but %s: check url, it should be https://host:8006 of a Proxmox VE host", urls, notProxmox)
	case errors.As(err, &pin):
		return explained("%s presented certificate fingerprint %s, which is not the configured one: if the host has a new certificate, set fingerprint to this value", urls, pin.seen)
	case errors.As(err, &untrusted) && len(untrusted.UnverifiedCertificates) > 0:
		return explained("the certificate of %s is not trusted (%s): set ca or ca_file to the CA (/etc/pve/pve-root-ca.pem of a host), or fingerprint to %s if that is what the host's own page shows",
			urls, oneLine(untrusted.Err.Error()), fingerprintOf(untrusted.UnverifiedCertificates[0]))
	case errors.As(err, &record):
		return explained("%s does not use TLS: check url and port, a Proxmox VE API is at https://host:8006", urls)
	case errors.Is(err, ErrUnauthorized):
		return explained("%s rejects the credentials (%s): check token_id and token_secret (or username and password), and that the token exists and is not expired", urls, known)
	case errors.Is(err, ErrNoQuorum):
		return explained("the Proxmox cluster has no quorum (%s): bring its hosts back online, check with: pvecm status", strings.TrimPrefix(known.Error(), ErrNoQuorum.Error()+": "))
	case errors.Is(err, ErrUnreachable):
		return explained("no response from Proxmox VE (%s): check that the host is up, that pveproxy runs on it, and that no firewall blocks the connection", strings.TrimPrefix(known.Error(), ErrUnreachable.Error()+": "))
	case errors.Is(err, ErrNoTime):
		return explained("no response from %s in time (%s)", urls, strings.TrimPrefix(known.Error(), ErrNoTime.Error()+": "))
	}
	return explained("%s responds with an error (%s)", urls, known)
}
