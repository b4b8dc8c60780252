// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

const (
	// timeout is how long reading a file may take.
	timeout = 30 * time.Second
	// maxBytes is the maximum size of a file with checksums.
	maxBytes = 1 << 20
)

// read returns the checksum of an image that a file with checksums lists. known is the one
// that was read before.
func (c *Controller) read(ctx context.Context, location, name string, known sum) (sum, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, location, nil)
	if err != nil {
		return sum{}, err
	}
	response, err := c.web.Do(request)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // without the URL, which the condition contains
		}
		return sum{}, fmt.Errorf("the controller cannot reach the server (%w); check the URL, and networkPolicy.egressPorts of the chart", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return sum{}, fmt.Errorf("the server returned %q; fix the URL", response.Status)
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, maxBytes+1))
	if err != nil {
		return sum{}, fmt.Errorf("the response ended early: %w", err)
	}
	if len(content) > maxBytes {
		return sum{}, errors.New("the file has more than 1 MiB; set the URL of a file with checksums, such as SHA256SUMS")
	}
	return find(string(content), name, known)
}

// redact returns a URL without its password.
func redact(location string) string {
	parsed, err := url.Parse(location)
	if err != nil {
		return location
	}
	return parsed.Redacted()
}
