// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/webpage"
)

// addWebPage adds the server of the web page to the manager, if it is enabled.
func (o *Operator) addWebPage(ctx context.Context, kubeCluster string) error {
	opts := o.settings.Options
	if opts.WebPagePort == 0 {
		return nil
	}
	read := func(ctx context.Context) (fleet.Map, error) {
		objects, err := fleet.ReadObjects(ctx, o.GetClient(), o.uncached)
		if err != nil {
			return fleet.Map{}, err
		}
		failure := o.followLeader(ctx)
		m := fleet.Build(fleet.Input{View: o.Inventory.View(), Objects: objects, KubeCluster: kubeCluster, Pricing: opts.Pricing(), Now: o.Clock.Now()})
		if failure != nil {
			m.Problems = append(m.Problems, fmt.Sprintf("which hosts sleep may be outdated: %v", failure))
		}
		return m, nil
	}
	server, err := webpage.NewServer(ctx, fmt.Sprintf(":%d", opts.WebPagePort), o.GetConfig(), o.GetHTTPClient(), webpage.Page{Read: read})
	if err != nil {
		return fmt.Errorf("%w (--web-page-port is %d)", err, opts.WebPagePort)
	}
	if err := o.Add(server); err != nil {
		return fmt.Errorf("adding the web page: %w", err)
	}
	return nil
}

// followLeader reads which Hosts were shut down to save energy if this process is not the leader,
// which knows it.
func (o *Operator) followLeader(ctx context.Context) error {
	select {
	case <-o.Elected():
		return nil
	default:
		return o.powerStore().Follow(ctx, o.Inventory)
	}
}
