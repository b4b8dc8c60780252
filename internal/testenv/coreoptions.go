// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/manager"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"
)

// WithCoreOptions makes one of core's controllers registrable: core reads its options from
// the context.
func WithCoreOptions(controller Registrar) Registrar { return coreController{controller} }

type coreController struct{ inner Registrar }

func (c coreController) Register(ctx context.Context, m manager.Manager) error {
	return c.inner.Register(coreoptions.ToContext(ctx, &coreoptions.Options{CPURequests: 1000}), m)
}
