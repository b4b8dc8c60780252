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

// storagesPerLook bounds what one look at leftovers costs, whatever the number of
// Hosts: after the first look, the storages take turns.
const storagesPerLook = 4

// BootDrives lists boot drives of this Kubernetes cluster, one call per Host and
// storage (shared ones once): all of them the first time, then some in turn. What
// cannot be listed now is left for the next time; the error tells.
func (p *Provider) BootDrives(ctx context.Context) ([]BootDrive, error) {
	look := p.looks.Add(1) - 1
	var out []BootDrive
	var errs []error
	for region, snapshot := range p.Inventory.View().Snapshots {
		client, err := p.client(region)
		if err != nil {
			continue
		}
		for _, key := range inTurn(isoStorages(snapshot), look) {
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

// inTurn picks the storages of the n-th look.
func inTurn(keys []inventory.StorageKey, look int64) []inventory.StorageKey {
	if look == 0 || len(keys) <= storagesPerLook {
		return keys
	}
	slices.SortFunc(keys, func(a, b inventory.StorageKey) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Storage, b.Storage))
	})
	first := int((look - 1) * storagesPerLook % int64(len(keys)))
	return slices.Concat(keys[first:], keys[:first])[:storagesPerLook]
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

// RemoveBootDrive deletes a boot drive whose Claim is gone.
func (p *Provider) RemoveBootDrive(ctx context.Context, drive BootDrive) error {
	client, err := p.client(drive.Region)
	if err != nil {
		return err
	}
	return p.deleteVolume(ctx, client, drive.Host, drive.Volume)
}

// TokensOf lists the Claims that have a join token.
func (p *Provider) TokensOf(ctx context.Context) (map[types.UID]string, error) {
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
