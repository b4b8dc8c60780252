// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// DescribeMetrics registers all metrics of the provider without any components. The
// reference page is generated from it.
func DescribeMetrics(registerer prometheus.Registerer) error {
	_, err := proxmox.New(proxmox.ClusterConfig{
		Region: "docs", URLs: []string{"https://docs.invalid:8006"}, TokenID: "docs@pve!docs", TokenSecret: "none",
	}, proxmox.Options{Registerer: registerer})
	inv, err2 := inventory.New(nil, inventory.Options{Registerer: registerer})
	_, err3 := instancetype.New(instancetype.Deps{Inventory: inv, Registerer: registerer})
	instance.NewMetrics(registerer)
	err4 := plan.RegisterAddressPoolMetrics(registerer, nil, inv)
	garbagecollection.NewController(garbagecollection.Deps{Registerer: registerer})
	power.NewController(power.Deps{Registerer: registerer})
	return errors.Join(err, err2, err3, err4)
}
