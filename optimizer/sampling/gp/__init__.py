r"""Bayesian optimisation with a Gaussian process, in NumPy and SciPy.

The mathematics is in `domain` (points as rows of numbers), `kernel`, `outputs`, `posterior`,
`fitting` and `acquisition`; `subset`, `transfer`, `search` and `proposal` use it.

Notation
    X           n × d matrix of encoded points, x one of them
    y           n transformed values, smaller is better, mean 0 and variance 1
    ℓ, s², a²   length per parameter, variance of their joint effect, of their separate effects
    σ²          variance of the noise
    K           k(X, X) + σ² I, with Cholesky factor L and α = K⁻¹ y
    μ(x), v(x)  posterior mean and variance of the function, without noise
    θ           the logarithms of all ℓ, s², a² and σ²

Papers
    Rasmussen, Williams: Gaussian Processes for Machine Learning (2006), equations 2.25, 2.26, 5.9
    Duvenaud, Nickisch, Rasmussen: Additive Gaussian processes (2011), the kernel's second part
    Snoek, Larochelle, Adams: Practical Bayesian Optimization (2012), expected improvement averaged
        over samples of θ
    Murray, Adams, MacKay: Elliptical slice sampling (2010), those samples
    Ament et al.: Unexpected Improvements to Expected Improvement (2023, arXiv 2310.20708), its
        logarithm
    Ginsbourger, Le Riche, Carraro: Kriging is well-suited to parallelize optimization (2010),
        pending points at the model's own prediction
    Hvarfner, Hellsten, Nardi: Vanilla Bayesian optimization performs great in high dimensions
        (2024, arXiv 2402.02229), lengths that grow with √d
    Garrido-Merchán, Hernández-Lobato: Dealing with categorical and integer-valued variables (2020,
        arXiv 1805.03463), the kernel sees what a trial would receive, rounded
    Tighineanu et al.: Scalable meta-learning with Gaussian processes (2023, arXiv 2312.00742), a
        prior mean of other tasks' posteriors
    Wistuba, Schilling, Schmidt-Thieme: Sequential model-free hyperparameter tuning (2015), start-up
        trials that do well on other tasks
"""
