// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"context"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/kubelet"
)

// setKubeletConfigurationValid sets KubeletConfigurationValid. It reports whether the
// configuration is valid.
func (c *Checker) setKubeletConfigurationValid(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) bool {
	if err := c.checkKubeletConfiguration(ctx, class); err != nil {
		class.StatusConditions().SetFalse(v1alpha1.ConditionKubeletConfigurationValid, v1alpha1.ReasonKubeletConfigurationInvalid, err.Error())
		return false
	}
	class.StatusConditions().SetTrue(v1alpha1.ConditionKubeletConfigurationValid)
	return true
}

func (c *Checker) checkKubeletConfiguration(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) error {
	config, err := kubelet.New(class.Spec.KubeletConfiguration)
	if err != nil {
		return err
	}
	if err := c.deps.Types.CheckKubelet(class); err != nil {
		return err
	}
	return config.CheckVersion(c.deps.Boot.Version(ctx))
}
