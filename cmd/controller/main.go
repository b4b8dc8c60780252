// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command controller runs Karpenter with the Proxmox VE provider.
package main

import (
	"context"
	"fmt"
	"os"

	// The image contains no CA certificates. These are used for a Proxmox with a certificate of a public CA, unless the
	// system has its own.
	_ "golang.org/x/crypto/x509roots/fallback"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/metrics"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	corecontrollers "sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	coreoperator "sigs.k8s.io/karpenter/pkg/operator"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
)

func main() {
	settings, err := operator.Load(os.Args[1:])
	if err == nil {
		err = run(settings)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error: "+err.Error())
		os.Exit(1)
	}
}

func run(settings operator.Settings) error {
	ctx, core := coreoperator.NewOperator()
	ctx = log.IntoContext(ctx, core.GetLogger())
	op, err := operator.New(ctx, core, settings)
	if err != nil {
		return err
	}
	undecorated := metrics.Decorate(op.CloudProvider)
	cloudProvider := overlay.Decorate(undecorated, op.GetClient(), op.InstanceTypeStore)
	matcher, err := health.NewRepairPolicyMatcher(ctx, cloudProvider)
	if err != nil {
		return fmt.Errorf("matching the repair policies: %w", err)
	}
	cluster := state.NewCluster(op.Clock, op.GetClient(), cloudProvider, state.WithRepairPolicyMatcher(matcher))
	op.WithControllers(ctx, corecontrollers.NewControllers(ctx, op.Manager, op.Clock, operator.WithoutEmptyPatches(op.GetClient()), op.EventRecorder,
		cloudProvider, undecorated, cluster, op.InstanceTypeStore, op.PredictionStore)...).
		WithControllers(ctx, op.Controllers(cluster)...).
		Start(operator.StopOnChange(stopOnSignal(ctx), settings, operator.ConfigWatchInterval))
	return nil
}

// stopOnSignal returns a context that is canceled on SIGTERM, so the manager stops and releases the leader's lease.
func stopOnSignal(ctx context.Context) context.Context {
	signals := ctrl.SetupSignalHandler()
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(signals, cancel)
	return ctx
}
