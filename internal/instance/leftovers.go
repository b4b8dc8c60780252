// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// BootDrive is a boot drive of ours on a storage.
type BootDrive struct {
	Region, Host, Volume string
	ClaimUID             string
	Created              time.Time
}

var isoPattern = regexp.MustCompile(`:iso/karpenter-([0-9a-f]+)-([0-9a-f-]{36})\.iso$`)

// BootDrives lists boot drives of this Kubernetes cluster, one call per Host and
// storage (shared ones once): all of them the first time, then one storage whenever
// the Cluster has a call to spare, so that most looks find nothing and cost nothing.
// What cannot be listed now is left for the next time; the error tells.
func (p *Provider) BootDrives(ctx context.Context) ([]BootDrive, error) {
	var out []BootDrive
	var errs []error
	for region, snapshot := range p.Inventory.View().Snapshots {
		client, err := p.client(region)
		if err != nil {
			continue
		}
		spare := p.Inventory.TryAcquire(region, inventory.ReadBootDrives)
		for _, key := range p.lookedAt.next(region, isoStorages(snapshot), spare) {
			volumes, err := client.Volumes(ctx, key.Host, key.Storage, "iso")
			if err != nil {
				errs = append(errs, err)
				continue
			}
			for _, volume := range volumes {
				found := isoPattern.FindStringSubmatch(volume.ID)
				if found == nil || found[1] != short(p.KubeCluster) {
					continue
				}
				out = append(out, BootDrive{Region: region, Host: key.Host, Volume: volume.ID, ClaimUID: found[2], Created: volume.Created})
			}
		}
	}
	return out, errors.Join(errs...)
}

// looks remembers for each region when each storage was last looked at, in looks.
type looks struct {
	mu    sync.Mutex
	count int
	last  map[string]map[inventory.StorageKey]int
}

// next picks the storages to look at: all of a region the first time, then the one
// that has waited longest, if there is a call to spare.
func (l *looks) next(region string, keys []inventory.StorageKey, spare bool) []inventory.StorageKey {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, again := l.last[region]
	if !again {
		last = map[inventory.StorageKey]int{}
		if l.last == nil {
			l.last = map[string]map[inventory.StorageKey]int{}
		}
		l.last[region] = last
	}
	if again {
		if !spare || len(keys) == 0 {
			return nil
		}
		keys = []inventory.StorageKey{slices.MinFunc(keys, func(a, b inventory.StorageKey) int { return cmp.Compare(last[a], last[b]) })}
	}
	for _, key := range keys {
		l.count++
		last[key] = l.count
	}
	return keys
}

// isoStorages are those that take boot drives: local ones of each online Host,
// shared ones once.
func isoStorages(snapshot *inventory.Snapshot) []inventory.StorageKey {
	var out []inventory.StorageKey
	seen := map[string]bool{}
	for key, row := range snapshot.Storages {
		if !slices.Contains(row.Content, "iso") || !row.Available || !snapshot.Hosts[key.Host].Online || (row.Shared && seen[key.Storage]) {
			continue
		}
		seen[key.Storage] = seen[key.Storage] || row.Shared
		out = append(out, key)
	}
	return out
}

// DeleteBootDrive deletes a boot drive whose Claim is gone.
func (p *Provider) DeleteBootDrive(ctx context.Context, drive BootDrive) error {
	client, err := p.client(drive.Region)
	if err != nil {
		return err
	}
	return p.deleteVolume(ctx, client, drive.Host, drive.Volume)
}

// ListTokens lists the Claims that have a join token.
func (p *Provider) ListTokens(ctx context.Context) (map[types.UID]string, error) {
	tokens, err := p.Boot.Tokens.ListOwned(ctx)
	if err != nil {
		return nil, err
	}
	out := make(map[types.UID]string, len(tokens))
	for _, token := range tokens {
		out[token.Claim.UID] = token.Claim.Name
	}
	return out, nil
}

// RevokeToken deletes the join token of a Claim that is gone.
func (p *Provider) RevokeToken(ctx context.Context, claim types.UID) error {
	if err := p.Boot.Tokens.Revoke(ctx, claim); err != nil {
		return fmt.Errorf("deleting the join token of a claim that is gone, %w", err)
	}
	return nil
}
