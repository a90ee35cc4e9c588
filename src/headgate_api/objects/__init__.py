"""Objects of the Kubernetes-style API as everybody knows them: kinds, names, bodies, errors, manifests."""
