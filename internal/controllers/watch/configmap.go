// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ConfigMap calls apply with a ConfigMap after every change, and at an interval unless that
// is 0, until the context ends. An absent ConfigMap is nil. If it cannot be read, the watch is
// retried. It needs no permission for other ConfigMaps.
func ConfigMap(ctx context.Context, config *rest.Config, key client.ObjectKey, interval time.Duration, apply func(*corev1.ConfigMap)) error {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client of ConfigMap %s: %w", key, err)
	}
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default: // what is in the store is applied anyway
		}
	}
	store, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.NewListWatchFromClient(kube.CoreV1().RESTClient(), "configmaps", key.Namespace, fields.OneTermEqualSelector("metadata.name", key.Name)),
		ObjectType:    &corev1.ConfigMap{},
		ResyncPeriod:  interval,
		Handler: toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { notify() },
			UpdateFunc: func(any, any) { notify() },
			DeleteFunc: func(any) { notify() },
		},
	})
	go informer.RunWithContext(ctx)
	if !toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil // the context ended
	}
	for {
		var found *corev1.ConfigMap
		for _, o := range store.List() {
			found, _ = o.(*corev1.ConfigMap)
		}
		apply(found)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}
