// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/due"
)

// Version returns the version of the API server, for example v1.36.3.
type Version func(ctx context.Context) string

// FixedVersion returns a Version that does not change.
func FixedVersion(version string) Version { return func(context.Context) string { return version } }

// versionTTL is how long the version of the API server is cached. New Nodes get the new
// version this long after an upgrade of the control plane.
const versionTTL = time.Minute

// NewServerVersion returns the Version of an API server. It reads it at once, which may
// fail, and again when the cached one is older than a minute. If that fails, the last one
// is returned.
func NewServerVersion(server discovery.ServerVersionInterface, clock clock.PassiveClock) (Version, error) {
	cache := due.New[string, string](clock, func(string) due.Policy {
		return due.Policy{Every: versionTTL, Retry: backoff.Exponential{Initial: versionTTL, Max: versionTTL}}
	})
	read := func(ctx context.Context) (string, error) {
		info, err := server.ServerVersion()
		if err != nil {
			log.FromContext(ctx).Error(err, "reading the API server's version failed")
			return "", fmt.Errorf("reading the API server's version: %w", err)
		}
		return info.GitVersion, nil
	}
	_, err := cache.Get(context.Background(), "", nil, read)
	return func(ctx context.Context) string {
		version, _ := cache.Get(ctx, "", nil, read)
		return version
	}, err
}
