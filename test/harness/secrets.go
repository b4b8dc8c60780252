// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Secrets are values that may show nowhere but where they belong: in the Secrets and
// files that hold them, and on the boot drive of the one VM that is to read them.
type Secrets struct {
	mu sync.Mutex
	// values, with what they are.
	values map[string]string
}

// WatchSecrets notes the values of every Secret that there ever is until the context
// ends, join tokens that live for seconds included.
func WatchSecrets(ctx context.Context, kube client.WithWatch) (*Secrets, error) {
	watch, err := kube.Watch(ctx, &corev1.SecretList{})
	if err != nil {
		return nil, fmt.Errorf("watching secrets, %w", err)
	}
	s := &Secrets{values: map[string]string{}}
	go func() {
		<-ctx.Done()
		watch.Stop()
	}()
	go func() {
		for event := range watch.ResultChan() {
			if secret, ok := event.Object.(*corev1.Secret); ok {
				s.note(secret)
			}
		}
	}()
	return s, nil
}

// public are the keys of Secrets whose values are no secrets.
var public = map[string]string{
	"apiServer":         "every Node shows where it reaches the API server",
	"clusterDNS":        "every Node's kubelet shows it",
	"clusterDomain":     "every Node's kubelet shows it",
	"cloudProvider":     "every Node's kubelet shows it",
	"installKubernetes": "a version",
	"ca.crt":            "certificates are public",
	"namespace":         "names are public",
}

// note takes over what is secret of a Secret: its values, and of a join token the half
// that is not its name.
func (s *Secrets) note(secret *corev1.Secret) {
	for key, value := range secret.Data {
		if secret.Type == corev1.SecretTypeBootstrapToken && key != "token-secret" {
			continue
		}
		if _, ok := public[key]; !ok {
			s.Add(secret.Name+"/"+key, string(value))
		}
	}
}

// shortest is the length from which a value cannot stand in a text by chance.
const shortest = 12

// Add a value that is in no Secret.
func (s *Secrets) Add(what, value string) {
	if value = strings.TrimSpace(value); len(value) < shortest {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[value] = what
}

// Known are what values are looked for, in words.
func (s *Secrets) Known() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Values(s.values))
}

// never are texts that are secret whatever their value.
var never = map[string]*regexp.Regexp{
	"a login ticket of Proxmox": regexp.MustCompile(`PVE:[^\s":]+@[a-z]+:[0-9A-F]{8}::`),
	"the header of a token":     regexp.MustCompile(`PVEAPIToken[= ]`),
	"a private key":             regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----`),
}

// In says which secrets a text shows, in whatever form logs and objects write them.
func (s *Secrets) In(where, text string) []string {
	var found []string
	for what, pattern := range never {
		if pattern.MatchString(text) {
			found = append(found, fmt.Sprintf("%s shows %s", where, what))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for value, what := range s.values {
		if slices.ContainsFunc(forms(value), func(form string) bool { return strings.Contains(text, form) }) {
			found = append(found, fmt.Sprintf("%s shows the value of %s", where, what))
		}
	}
	return found
}

func forms(value string) []string {
	quoted, err := json.Marshal(value)
	if err != nil {
		quoted = []byte(`""`)
	}
	return []string{
		value, string(quoted[1 : len(quoted)-1]), url.QueryEscape(value), url.PathEscape(value),
		base64.StdEncoding.EncodeToString([]byte(value)), base64.RawURLEncoding.EncodeToString([]byte(value)),
	}
}

// Places are where secrets are looked for.
type Places struct {
	Plane *Plane
	// Logs of the controller, by path.
	Logs []string
	// Metrics of the controller, if it runs.
	Metrics string
	// Proxmox is looked through as somebody sees it who may look at everything there.
	Proxmox *API
}

// Search looks through all places: logs, metrics, all objects of Kubernetes but
// Secrets, events included, and on Proxmox the configurations of VMs, notes included,
// and the logs of all tasks.
func (s *Secrets) Search(ctx context.Context, places Places) ([]string, error) {
	texts, err := places.texts(ctx)
	if err != nil {
		return nil, fmt.Errorf("collecting what could show a secret, %w", err)
	}
	var found []string
	for where, text := range texts {
		found = append(found, s.In(where, text)...)
	}
	slices.Sort(found)
	return found, nil
}

func (p Places) texts(ctx context.Context) (map[string]string, error) {
	texts := map[string]string{"the metrics": p.Metrics}
	for _, path := range p.Logs {
		content, err := readIfThere(path)
		if err != nil {
			return nil, err
		}
		texts["the log "+path] = content
	}
	objects, err := p.Plane.Objects(ctx)
	if err != nil {
		return nil, err
	}
	if len(objects) < 20 {
		return nil, fmt.Errorf("found only %d objects", len(objects))
	}
	maps.Copy(texts, objects)
	guests, err := p.Proxmox.Guests(ctx)
	if err != nil {
		return nil, err
	}
	for _, guest := range guests {
		config, err := json.Marshal(guest.Config)
		if err != nil {
			return nil, err
		}
		texts[fmt.Sprintf("VM %d (%s)", guest.VMID, guest.Name)] = string(config)
	}
	logs, err := p.Proxmox.TaskLogs(ctx)
	maps.Copy(texts, logs)
	return texts, err
}
