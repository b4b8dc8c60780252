// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
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
	info, err := server.ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("reading the API server's version: %w", err)
	}
	var mu sync.Mutex
	version, read := info.GitVersion, clock.Now()
	return func(ctx context.Context) string {
		mu.Lock()
		last, expired := version, clock.Since(read) >= versionTTL
		if expired {
			read = clock.Now()
		}
		mu.Unlock()
		if !expired {
			return last
		}
		// Without the lock: other launches use the last version meanwhile.
		info, err := server.ServerVersion()
		if err != nil {
			log.FromContext(ctx).Error(err, "reading the API server's version failed, using the last one", "version", last)
			return last
		}
		if info.GitVersion != last {
			log.FromContext(ctx).Info("the API server's version changed", "version", info.GitVersion, "previous", last)
		}
		mu.Lock()
		defer mu.Unlock()
		version = info.GitVersion
		return version
	}, nil
}
