// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/base64"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
)

// watchSecrets notes the value of every Secret that ever was, join tokens that
// live for seconds included. The answer is by value, with where it was seen.
func (w *world) watchSecrets(t *testing.T) func() map[string]string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	watch, err := w.kube.Watch(ctx, &corev1.SecretList{})
	must(t, err)
	var mu sync.Mutex
	values := map[string]string{}
	go func() {
		for event := range watch.ResultChan() {
			secret, ok := event.Object.(*corev1.Secret)
			if !ok {
				continue
			}
			mu.Lock()
			for key, value := range secret.Data {
				for _, part := range secretParts(secret, key, string(value)) {
					values[part] = secret.Name + "/" + key
				}
			}
			mu.Unlock()
		}
	}()
	values[w.proxmox.Cluster(w.region).TokenSecret] = "the cloud config"
	return func() map[string]string {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(values)
	}
}

// secretParts are those values of a Secret that nobody may see. Templates and
// configuration are no secrets by themselves, what is filled in is.
func secretParts(secret *corev1.Secret, key, value string) []string {
	switch {
	case secret.Type == corev1.SecretTypeBootstrapToken && key == "token-secret":
		return []string{value}
	case strings.HasSuffix(secret.Name, "-values") && strings.HasPrefix(key, "ssh"):
		return []string{value}
	}
	return nil
}

// noSecretShows looks through logs, metrics and all objects but Secrets.
func (w *world) noSecretShows(t *testing.T, secrets map[string]string) {
	t.Helper()
	if len(secrets) < 3 {
		t.Fatalf("found only %d secret values to look for: %v", len(secrets), slices.Collect(maps.Values(secrets)))
	}
	look := func(where, text string) {
		for value, from := range secrets {
			if strings.Contains(text, value) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(value))) {
				t.Errorf("%s shows the value of %s", where, from)
			}
		}
	}
	look("the log", w.logOf(t))
	metrics, err := w.controller.Metrics(t.Context())
	must(t, err)
	look("the metrics", metrics)
	for where, text := range w.allObjects(t) {
		look(where, text)
	}
}

// allObjects of the cluster but Secrets, as text.
func (w *world) allObjects(t *testing.T) map[string]string {
	t.Helper()
	discover, err := discovery.NewDiscoveryClientForConfig(w.plane.Config)
	must(t, err)
	lists, err := discover.ServerPreferredResources()
	must(t, err)
	api, err := dynamic.NewForConfig(w.plane.Config)
	must(t, err)
	found := map[string]string{}
	for _, list := range lists {
		group, err := schema.ParseGroupVersion(list.GroupVersion)
		must(t, err)
		for _, resource := range list.APIResources {
			if resource.Kind == "Secret" || !slices.Contains(resource.Verbs, "list") {
				continue
			}
			objects, err := api.Resource(group.WithResource(resource.Name)).List(t.Context(), metav1.ListOptions{})
			must(t, err)
			for _, object := range objects.Items {
				text, err := object.MarshalJSON()
				must(t, err)
				found[object.GetKind()+" "+object.GetNamespace()+"/"+object.GetName()] = string(text)
			}
		}
	}
	if len(found) < 20 {
		t.Fatalf("found only %d objects to look through", len(found))
	}
	return found
}
